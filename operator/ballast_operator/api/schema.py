# SPDX-License-Identifier: Apache-2.0
"""A pydantic model as a structural OpenAPI schema, as the API server wants it.

Structural means: no references, no alternatives that change the type, every property typed. What pydantic adds for its own
use (titles, null alternatives, additionalProperties) goes; descriptions, bounds, defaults and x-kubernetes-* stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pydantic

Schema = dict[str, Any]

_DROPPED: Final = frozenset({"title", "$defs", "additionalProperties", "propertyNames"})
_INT32_MAX: Final = (1 << 31) - 1


class SchemaError(TypeError):
    """A model that has no structural schema; the message names the place."""


def structural(model: type[pydantic.BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of a model, keys by alias.

    Args:
        model: The model.
        defaults: The API server fills in what is left out. Not for a status, where absent means not known.

    Raises:
        SchemaError: a field has alternatives other than a type and null.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    converted = _convert(schema, schema.get("$defs", {}), model.__name__)
    return converted if defaults else _without_defaults(converted)


def _convert(schema: Mapping[str, Any], definitions: Mapping[str, Schema], path: str) -> Schema:
    schema = _resolve(schema, definitions, path)
    result: Schema = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "properties" in schema:
        result["properties"] = {
            name: _convert(value, definitions, f"{path}.{name}") for name, value in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(schema["additionalProperties"], definitions, f"{path}.*")
    if "items" in schema:
        result["items"] = _convert(schema["items"], definitions, f"{path}[]")
    if result.get("type") == "integer":
        result["format"] = "int32" if result.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    if isinstance(result.get("default"), dict):
        result["default"] = {}
    elif result.get("type") == "array":
        result.pop("default", None)
    return result


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Schema], path: str) -> Schema:
    """The schema with its reference and its null alternative resolved; what stands beside them wins."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _merge(_resolve(target, definitions, path), {k: v for k, v in schema.items() if k != "$ref"})
    if "anyOf" in schema:
        wanted = [part for part in schema["anyOf"] if part.get("type") != "null"]
        if len(wanted) != 1:
            raise SchemaError(f"{path} has {len(wanted)} alternatives; a structural schema has one")
        beside = {k: v for k, v in schema.items() if k != "anyOf" and not (k == "default" and v is None)}
        return _merge(_resolve(wanted[0], definitions, path), beside)
    return dict(schema)


def _merge(below: Schema, above: Mapping[str, Any]) -> Schema:
    validations = "x-kubernetes-validations"
    merged = {**below, **above}
    if validations in below and validations in above:
        merged[validations] = [*below[validations], *above[validations]]
    return merged


def _without_defaults(schema: Schema) -> Schema:
    result = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {name: _without_defaults(value) for name, value in result["properties"].items()}
    if "items" in result:
        result["items"] = _without_defaults(result["items"])
    return result
