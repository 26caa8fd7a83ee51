# SPDX-License-Identifier: Apache-2.0
"""Clear words for bad input: which key or value is wrong, what is allowed, and the nearest thing that was meant."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pydantic
from pydantic.fields import FieldInfo

from ballast_contract.former_names import ALL_NAMES, RENAMED, SECTIONS, places

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80

_A_MAPPING: Final = "must be a mapping of keys to values"
_A_NUMBER: Final = "must be a whole number"
_TRUE_OR_FALSE: Final = "must be true or false"

_WORDS: Final[Mapping[str, str]] = {
    "bool_parsing": _TRUE_OR_FALSE,
    "bool_type": _TRUE_OR_FALSE,
    "dict_type": _A_MAPPING,
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": _A_NUMBER,
    "int_parsing": _A_NUMBER,
    "int_parsing_size": "has too many digits",
    "int_type": _A_NUMBER,
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_attributes_type": _A_MAPPING,
    "model_type": _A_MAPPING,
    "path_type": "must be a path",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "may have a length of at most {max_length}",
    "string_too_short": "needs a length of at least {min_length}",
    "string_type": "must be text; put it in quotes",
    "too_long": "may have at most {max_length} items",
    "too_short": "must have {min_length} or more items",
    "tuple_type": "must be a list",
}
"""What a rule of pydantic says to whoever writes a file; what is not here is said in pydantic's words."""


def short(value: object) -> str:
    """A value for a message, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    return _SHORT.repr(value)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, or None when none is close."""
    candidates = {k.lower(): k for k in known}
    found = difflib.get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def unknown_key(path: str, key: str, known: Iterable[str], value: Any = None) -> str:
    """One sentence about a key that does not exist at `path` (empty for the top), and what was given for it."""
    below = f"{path}." if path else ""
    where = below + key
    if key in RENAMED:
        return f"unknown key '{where}': its name here is {RENAMED[key]}"
    if key in SECTIONS and isinstance(value, dict) and value:
        moved = ", ".join(places(key, value))
        return f"unknown key '{where}': its settings have other places here: {moved}; {ALL_NAMES} has all names"
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
            known = keys_at(model, fault["loc"][:-1])
            lines.append(unknown_key(".".join(parents), key, known, fault["input"]))
        else:
            words = in_words(fault)
            lines.append((f"'{path}': " if path else "") + words + _given(fault, words))
    return "; ".join(lines)


def in_words(fault: Any) -> str:
    """What is wrong with the value at a place, as a fault of pydantic has it."""
    words = _WORDS.get(fault["type"])
    return fault["msg"].removeprefix("Value error, ") if words is None else words.format(**fault.get("ctx", {}))


def _given(fault: Any, words: str) -> str:
    """What was given, unless the words say it."""
    value = fault.get("input")
    if fault["type"] == "missing" or not isinstance(value, str | int | float | None):
        return ""
    if isinstance(value, str) and value in RENAMED:
        return f" (got {short(value)}: its name here is {RENAMED[value]})"
    if isinstance(value, str) and short(value) in words:
        return ""
    return f" (got {'nothing' if value is None else short(value)})"


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
