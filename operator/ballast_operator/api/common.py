# SPDX-License-Identifier: Apache-2.0
"""What both kinds share: bases, metadata, conditions and the bounded types that schemas are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from ballast_contract import names

API_VERSION: Final = f"{names.API_GROUP}/{names.API_VERSION}"

DNS_LABEL: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
NAMESPACE: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

_VALIDATIONS: Final = "x-kubernetes-validations"


class Spec(pydantic.BaseModel):
    """A part of what the user wants: immutable, unknown keys refused, keys in camelCase."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


class Status(pydantic.BaseModel):
    """A part of what was observed: everything optional, keys of other releases passed over."""

    model_config = pydantic.ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


class ObjectMeta(pydantic.BaseModel):
    """The metadata that is read; the rest of it is passed over."""

    model_config = pydantic.ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def deleting(self) -> bool:
        """Whether the object is on its way out."""
        return bool(self.deletion_timestamp)


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule of the schema at the place where it annotates a field.

    Args:
        rule: What must hold.
        message: What is said otherwise.
        naming: A CEL expression of type string that says it with the value; the API server has to be able to bound its
            length, which it cannot for numbers.
    """

    rule: str
    message: str
    naming: str = ""

    def as_schema(self) -> pydantic.JsonValue:
        """The entry of `x-kubernetes-validations`."""
        entry: dict[str, pydantic.JsonValue] = {"rule": self.rule, "message": self.message}
        return entry | {"messageExpression": self.naming} if self.naming else entry

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        schema[_VALIDATIONS] = [*schema.get(_VALIDATIONS, []), self.as_schema()]
        return schema


def rules(*given: Rule) -> dict[str, pydantic.JsonValue]:
    """The `json_schema_extra` of a model with rules of its own."""
    return {_VALIDATIONS: [rule.as_schema() for rule in given]}


@dataclass(frozen=True, slots=True)
class Spelling:
    """Text of one spelling, checked alike by the model and by the schema (CEL, for a message that says what is right).

    Args:
        pattern: Regular expression, anchored, that RE2 reads too.
        expected: What to write instead, after "'<value>' is not".
        integers: YAML numbers are read as their digits, so that `budget: 0` needs no quotes.
    """

    pattern: str
    expected: str
    integers: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.no_info_after_validator_function(self._check, handler(source))
        return core_schema.no_info_before_validator_function(self._read, text) if self.integers else text

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        text = "string(self)" if self.integers else "self"
        rule = Rule(
            f"{text}.matches(r'{self.pattern}')",
            f"must be {self.expected}",
            f'"\'" + {text} + "\' is not {self.expected}"',
        )
        schema[_VALIDATIONS] = [*schema.get(_VALIDATIONS, []), rule.as_schema()]
        if self.integers:
            del schema["type"]
            schema["x-kubernetes-int-or-string"] = True
        return schema

    def _check(self, value: str) -> str:
        if re.search(self.pattern, value) is None:
            raise ValueError(f"'{value}' is not {self.expected}")
        return value

    @staticmethod
    def _read(value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ObjectName = Annotated[
    str,
    pydantic.Field(min_length=1, max_length=253),
    Spelling(f"^{DNS_SUBDOMAIN}$", "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'"),
]

NamespaceName = Annotated[
    str,
    pydantic.Field(min_length=1, max_length=63),
    Spelling(f"^{NAMESPACE}$", "the name of a namespace: lower-case letters, digits and '-'"),
]

LabelKey = Annotated[str, pydantic.Field(min_length=1, max_length=316)]
LabelValue = Annotated[str, pydantic.Field(max_length=63)]

Count = Annotated[int, pydantic.Field(ge=0, le=(1 << 31) - 1)]
"""A number of things in a status."""

Percent = Annotated[int, pydantic.Field(ge=0, le=100)]
Generation = Annotated[int, pydantic.Field(ge=0, le=1 << 53)]
"""A generation; the API server compares bounds as doubles, which are exact up to 2^53."""

ReportedSize = Annotated[str, pydantic.Field(max_length=32)]
"""A size in a status, as text: a column prints it as it stands."""

MAX_WORD: Final = 253

Word = Annotated[str, pydantic.Field(max_length=MAX_WORD)]
"""A name or a reason in a status."""

Message = Annotated[str, pydantic.Field(max_length=32768)]
Timestamp = Annotated[str, pydantic.Field(max_length=64, json_schema_extra={"format": "date-time"})]


class Tier(StrEnum):
    """Where a model's weights are, from worst to best."""

    NONE = "none"
    HOST = "host"
    DEVICE = "device"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Status):
    """One fact about an object, as metav1.Condition."""

    type: Annotated[str, pydantic.Field(min_length=1, max_length=316)]
    """type names the condition."""
    status: ConditionStatus
    """status is True, False, or Unknown where nothing is known yet or any more."""
    reason: Annotated[
        str, pydantic.Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """reason says why in one word of the closed list in docs/reference/reasons.md."""
    message: Message
    """message says it in a sentence: what, value, limit, and what to do."""
    last_transition_time: Timestamp
    """lastTransitionTime is when status last changed."""
    observed_generation: Generation = 0
    """observedGeneration is the generation of the object that the condition speaks of."""


Conditions = Annotated[
    tuple[Condition, ...],
    pydantic.Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]
