# SPDX-License-Identifier: Apache-2.0
"""Fields that a client sent and the API server dropped: found in what `kubectl apply` wrote down."""

from __future__ import annotations

import json
from typing import Any, Final

import pydantic

from ballast_contract import validation
from ballast_operator.cluster.client import Object

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_LIMIT: Final = 5


def unknown_fields(obj: Object, model: type[pydantic.BaseModel]) -> list[str]:
    """One sentence for each unknown key below `spec`, with the nearest known one; at most five.

    Only clients that keep the annotation tell what they meant; a newer release's field that was applied with a newer
    definition and is known to the API server is still unknown to this operator, and said so.
    """
    text = obj["metadata"].get("annotations", {}).get(LAST_APPLIED)
    if not text:
        return []
    try:
        applied = json.loads(text)
    except ValueError:
        return []
    spec = applied.get("spec") if isinstance(applied, dict) else None
    found: list[str] = []
    _walk(spec, model, "spec", found)
    return found[:_LIMIT]


def _walk(value: Any, model: type[pydantic.BaseModel], path: str, found: list[str]) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, model, f"{path}[{index}]", found)
        return
    if not isinstance(value, dict):
        return
    fields = validation.fields_of(model)
    for key, item in value.items():
        field = fields.get(key)
        if field is None:
            found.append(validation.unknown_key(path, key, fields, item))
        elif (inner := validation.model_of(field.annotation)) is not None:
            _walk(item, inner, f"{path}.{key}", found)
