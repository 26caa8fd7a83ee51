# SPDX-License-Identifier: Apache-2.0
"""Clear words for bad input: which key or value is wrong, what is allowed, and the nearest thing that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pydantic
from pydantic.fields import FieldInfo

RENAMED: Final[Mapping[str, str]] = {
    "mem_fraction": "device.budget (bytes, or a percentage of the card)",
    "device_memory_fraction": "device.budget (bytes, or a percentage of the card)",
    "weight_cache_fraction": "device.weights.maxPercent",
    "device_weight_fraction": "device.weights.maxPercent",
    "weight_cache_wiggle_fraction": "device.weights.slackPercent",
    "device_headroom_fraction": "device.weights.slackPercent",
    "pin_to_gpu": "residency: device",
    "host_weight_budget": "host.budget",
    "shared_host_weights": "host.sharing (node | none)",
    "shared_host_weights_mode": "host.fileMode",
    "lpt_packing": "placement.mode: packed",
    "eager": "lazy",
    "scheduled": "preload",
    "on_demand": "disabled",
    "off": "disabled",
}
"""Names of ReactantServer that people may still type, and ours in their place."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, or None when none is close."""
    candidates = {k.lower(): k for k in known}
    found = difflib.get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def unknown_key(path: str, key: str, known: Iterable[str]) -> str:
    """One sentence about a key that does not exist at `path` (empty for the top)."""
    below = f"{path}." if path else ""
    where = below + key
    if key in RENAMED:
        return f"unknown key '{where}': its name here is {RENAMED[key]}"
    known = sorted(known)
    hint = nearest(key, known)
    return f"unknown key '{where}': " + (
        f"did you mean '{below}{hint}'?" if hint else f"known keys are {', '.join(known)}"
    )


def describe(error: pydantic.ValidationError, model: type[pydantic.BaseModel]) -> str:
    """Every fault of a validation in one line each, keys spelled as the user spells them (by alias)."""
    lines = []
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            *parents, key = (str(part) for part in fault["loc"])
            lines.append(unknown_key(".".join(parents), key, keys_at(model, fault["loc"][:-1])))
        else:
            value = fault.get("input")
            shown = f" (got {value!r})" if isinstance(value, str | int | float | bool) else ""
            lines.append(f"'{path}': {fault['msg'].removeprefix('Value error, ')}{shown}")
    return "; ".join(lines)


def keys_at(model: type[pydantic.BaseModel], path: Iterable[int | str]) -> list[str]:
    """The keys that exist at the place of a fault, as the user spells them; none where no model is there."""
    current: type[pydantic.BaseModel] | None = model
    for part in path:
        if current is None or isinstance(part, int):
            continue
        fields = current.model_fields.items()
        current = next((model_of(field.annotation) for name, field in fields if part in (name, field.alias)), None)
    return [] if current is None else list(fields_of(current))


def fields_of(model: type[pydantic.BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the keys that the user spells (by alias)."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def model_of(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The model of a field: its annotation, or what that holds as an alternative to None or as items; else None."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    found = (model_of(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)
