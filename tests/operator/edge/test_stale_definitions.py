# SPDX-License-Identifier: Apache-2.0
"""Definitions of an earlier release: each field that they lack is named, and left out of what is written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ballast_operator.edge.preflight import check_definitions
from ballast_operator.reconcile.writing import declared

CRDS = Path(__file__).parents[3] / "crds"
SCHEMAS = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for crd in map(yaml.safe_load, (path.read_text() for path in sorted(CRDS.glob("*.yaml"))))
}


class Installed:
    """A client that serves the definitions as the API server publishes them."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._published = {
            kind: {**schema, "x-kubernetes-group-version-kind": [{"group": "ballast.dev", "kind": kind}]}
            for kind, schema in schemas.items()
        }

    async def get_path(self, _: str) -> dict[str, Any]:
        return {"components": {"schemas": self._published}}


def fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The path of every field below one."""
    for key, value in schema.get("properties", {}).items():
        yield f"{path}.{key}"
        yield from fields(value, f"{path}.{key}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


def without(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """A schema that never had the field."""
    reduced = copy.deepcopy(schema)
    *above, last = path.split(".")
    at = reduced
    for key in above:
        at = at["properties"][key.removesuffix("[]")]
        at = at["items"] if key.endswith("[]") else at
    del at["properties"][last]
    at["required"] = [key for key in at.get("required", ()) if key != last]
    return reduced


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as it judges an apply: a field that it lacks is refused."""
    found = {key: value for key, value in schema.items() if key != "format"}
    if "properties" in found:
        found["properties"] = {key: closed(value) for key, value in found["properties"].items()}
        found["additionalProperties"] = False
    if "items" in found:
        found["items"] = closed(found["items"])
    return found


def example(schema: dict[str, Any]) -> Any:
    """A value that says everything which the schema has a field for."""
    match schema["type"]:
        case "object":
            return {key: example(value) for key, value in schema["properties"].items()}
        case "array":
            return [example(schema["items"])] * 2
        case "string":
            return schema.get("enum", ["x"])[0]
        case "integer":
            return schema["minimum"]
        case "boolean":
            return True


FIELDS = [
    (kind, path)
    for kind, schema in SCHEMAS.items()
    for part in ("spec", "status")
    for path in fields(schema["properties"][part], part)
]
STATUS = [(kind, path) for kind, path in FIELDS if path.startswith("status.")]


def test_the_fields_below_lists_and_below_what_may_be_absent_are_among_them():
    assert {
        ("InferenceModel", "status.workers[].tier"),
        ("InferenceModel", "status.lastFailure.exitCode"),
        ("WeightBudget", "status.device.largestFree"),
        ("WeightBudget", "status.conditions[].observedGeneration"),
        ("WeightBudget", "spec.workers.env[].valueFrom.secretKeyRef.key"),
    } <= set(FIELDS)


@pytest.mark.parametrize(("kind", "path"), FIELDS)
async def test_a_field_that_the_installed_definition_lacks_is_named(kind: str, path: str):
    installed = {**SCHEMAS, kind: without(SCHEMAS[kind], path)}
    assert await check_definitions(Installed(installed)) == [f"{kind} {path}"]


async def test_what_a_definition_takes_without_naming_it_is_not_lacking():
    assert await check_definitions(Installed(SCHEMAS)) == []
    opened = without(SCHEMAS["WeightBudget"], "status.device")
    opened["properties"]["status"]["properties"]["device"] = {"x-kubernetes-preserve-unknown-fields": True}
    assert await check_definitions(Installed({**SCHEMAS, "WeightBudget": opened})) == []


@pytest.mark.parametrize(("kind", "path"), STATUS)
def test_a_status_without_the_fields_that_the_installed_definition_lacks_is_taken(kind: str, path: str):
    whole = example(SCHEMAS[kind]["properties"]["status"])
    installed = closed(without(SCHEMAS[kind], path)["properties"]["status"])
    with pytest.raises(jsonschema.ValidationError, match=path.rpartition(".")[2]):
        jsonschema.validate(whole, installed)
    written = declared(whole, kind, [f"{kind} {path}"])
    jsonschema.validate(written, installed)
    assert written == example(without(SCHEMAS[kind], path)["properties"]["status"])
