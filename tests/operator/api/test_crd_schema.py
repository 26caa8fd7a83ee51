# SPDX-License-Identifier: Apache-2.0
"""Rules that every field of both CRDs keeps, checked on the schemas as they are installed."""

from __future__ import annotations

import re

import pytest
import yaml
from pydantic import BaseModel

from ballast_contract.names import API_GROUP
from ballast_operator.api import crd
from ballast_operator.api.schema import SchemaError, structural

DEFINITIONS = crd.all_definitions()
FREE_FORM = {"affinity"}
CORE_ENUMS = {"operator", "effect", "whenUnsatisfiable", "nodeAffinityPolicy", "nodeTaintsPolicy", "status"}
"""Fields spelled as in core/v1, whose values are not ours to spell."""


def walk(schema, path, name=""):
    """Every schema below one, as (path, name of the field, schema)."""
    yield path, name, schema
    for key, value in schema.get("properties", {}).items():
        yield from walk(value, f"{path}.{key}", key)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]", name)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*", name)


def root(definition):
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


FIELDS = [
    pytest.param(name, schema, id=path)
    for definition in DEFINITIONS.values()
    for part in ("spec", "status")
    for path, name, schema in walk(
        root(definition)["properties"][part], f"{definition['spec']['names']['kind']}.{part}", part
    )
]
PROPERTIES = [p for p in FIELDS if not p.id.endswith(("[]", ".*"))]


@pytest.mark.parametrize(("name", "schema"), FIELDS)
def test_every_field_has_one_type(name, schema):
    assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False)
    assert schema.get("type") != "number"
    assert not {"$ref", "anyOf", "allOf", "oneOf", "not", "title", "const"} & schema.keys()
    assert "nullable" not in schema


@pytest.mark.parametrize(("name", "schema"), PROPERTIES)
def test_every_field_is_described_and_the_description_starts_with_its_name(name, schema):
    assert schema["description"].split()[0] == name
    assert schema["description"].endswith(".")


@pytest.mark.parametrize(("name", "schema"), FIELDS)
def test_every_field_is_bounded(name, schema):
    match schema.get("type", "size"):
        case "string" if "enum" not in schema:
            assert schema["maxLength"] <= 32768
        case "size":
            assert schema["maxLength"] <= 32
        case "integer":
            assert {"minimum", "maximum", "format"} <= schema.keys()
            assert -(2**53) <= schema["minimum"] <= schema["maximum"] <= 2**53
        case "array":
            assert schema["maxItems"] <= 1024
            assert schema["x-kubernetes-list-type"] in {"map", "set", "atomic"}
        case "object" if "additionalProperties" in schema:
            assert schema["maxProperties"] <= 64
        case "object" if name in FREE_FORM:
            assert schema["x-kubernetes-preserve-unknown-fields"] is True
        case "object":
            assert schema["properties"]
            assert "x-kubernetes-preserve-unknown-fields" not in schema


@pytest.mark.parametrize(("name", "schema"), FIELDS)
def test_keys_of_list_maps_are_required_fields(name, schema):
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        assert key in schema["items"]["properties"]
        assert key in schema["items"]["required"]


@pytest.mark.parametrize(("name", "schema"), FIELDS)
def test_our_enum_values_are_lower_camel_case_and_none_is_read_as_a_boolean(name, schema):
    for value in schema.get("enum", ()):
        assert yaml.safe_load(value) == value or name in CORE_ENUMS
        assert re.fullmatch(r"[a-z][a-zA-Z0-9]*", value) or name in CORE_ENUMS


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_nothing_in_a_status_is_required_or_defaulted(definition):
    status = root(definition)["properties"]["status"]
    assert "required" not in status
    assert not [path for path, _, schema in walk(status, "status") if "default" in schema]


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_no_phase_anywhere(definition):
    assert not [path for path, name, _ in walk(root(definition), "") if name == "phase"]


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_conditions_are_those_of_the_api_machinery(definition):
    conditions = root(definition)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert sorted(conditions["items"]["required"]) == ["lastTransitionTime", "message", "reason", "status", "type"]
    assert conditions["items"]["properties"]["status"]["enum"] == ["True", "False", "Unknown"]


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_defaults_are_static_and_below_optional_fields_only(definition):
    def check(schema):
        for name in schema.get("required", ()):
            assert "default" not in schema["properties"][name]
        for value in schema.get("properties", {}).values():
            check(value)

    check(root(definition)["properties"]["spec"])


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_a_definition_is_small_enough_to_apply(definition):
    assert len(yaml.safe_dump(definition)) < 64 * 1024


def test_columns_are_the_documented_ones():
    def headings(name, *, wide):
        columns = DEFINITIONS[f"{name}.{API_GROUP}.yaml"]["spec"]["versions"][0]["additionalPrinterColumns"]
        return [column["name"].upper() for column in columns if bool(column.get("priority")) is wide]

    assert headings("inferencemodels", wide=False) == ["RESIDENCY", "STATE", "READY", "COPIES", "SIZE", "POOL", "AGE"]
    assert headings("inferencemodels", wide=True) == ["WORKERS", "LOAD", "REASON", "MESSAGE"]
    assert headings("weightbudgets", wide=False) == [
        "WORKERS",
        "DEVICE",
        "PINNED",
        "FREE",
        "LARGEST",
        "FRAG",
        "FITS",
        "AGE",
    ]


def test_short_names_collide_with_no_built_in_kind():
    taken = "cm cs csr crd deploy ds ep ev hpa ing limits netpol no ns pc pdb po pv pvc quota rc rs sa sc sts svc"
    names = [name for definition in DEFINITIONS.values() for name in definition["spec"]["names"]["shortNames"]]
    assert not set(taken.split()) & set(names)
    assert len(set(names)) == len(names)


def test_a_field_of_two_types_has_no_structural_schema():
    class Mixed(BaseModel):
        value: int | str

    with pytest.raises(SchemaError, match=r"Mixed\.value has 2 alternatives"):
        structural(Mixed)
