# SPDX-License-Identifier: Apache-2.0
"""The parts of a Pod that a WeightBudget may set: narrow on purpose, spelled as in core/v1."""

from __future__ import annotations

import decimal
from enum import StrEnum
from typing import Annotated, Final

import pydantic

from ballast_operator.api.common import LabelKey, LabelValue, ObjectName, Rule, Spec, Spelling, rules

_QUANTITY = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"

PodQuantity = Annotated[
    str,
    pydantic.Field(min_length=1, max_length=32),
    Spelling(_QUANTITY, "a Kubernetes quantity, as in 500m, 2 or 8Gi", integers=True),
]
_SUFFIXES: Final = {
    "n": (10, -9),
    "u": (10, -6),
    "m": (10, -3),
    "": (10, 0),
    "k": (10, 3),
    "M": (10, 6),
    "G": (10, 9),
    "T": (10, 12),
    "P": (10, 15),
    "E": (10, 18),
    **{f"{unit}i": (2, 10 * power) for power, unit in enumerate("KMGTPE", start=1)},
}

ResourceList = Annotated[dict[LabelKey, PodQuantity], pydantic.Field(max_length=16)]


def memory_bytes(quantity: str) -> int:
    """Bytes of a Kubernetes quantity, rounded up; 0 of one that the API server would refuse."""
    digits = quantity.rstrip("EinumkKMGTP")
    base, power = _SUFFIXES.get(quantity[len(digits) :], (10, 0))
    try:
        value = decimal.Decimal(digits) * decimal.Decimal(base) ** power
        return max(0, int(value.to_integral_value(rounding=decimal.ROUND_CEILING)))
    except decimal.InvalidOperation:
        return 0


class ImagePullSecret(Spec):
    """A Secret with registry credentials."""

    name: ObjectName
    """name is the name of a Secret in the same namespace."""


class Resources(Spec):
    """Requests and limits of a container."""

    requests: ResourceList = pydantic.Field(default_factory=dict)
    """requests are what the scheduler sets aside."""
    limits: ResourceList = pydantic.Field(default_factory=dict)
    """limits are the most that the container may take."""


class KeyRef(Spec):
    """A key of a Secret or ConfigMap."""

    name: ObjectName
    """name is the name of the object in the same namespace."""
    key: Annotated[str, pydantic.Field(min_length=1, max_length=253)]
    """key is the key in it."""
    optional: bool = False
    """optional leaves the variable out where the object or key does not exist; otherwise the pod does not start."""


class FieldRef(Spec):
    """A field of the pod."""

    field_path: Annotated[str, pydantic.Field(min_length=1, max_length=512)]
    """fieldPath is the path of the field, as in status.podIP."""


class EnvVarSource(Spec):
    """Where the value of an environment variable comes from."""

    secret_key_ref: KeyRef | None = None
    """secretKeyRef is a key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """configMapKeyRef is a key of a ConfigMap."""
    field_ref: FieldRef | None = None
    """fieldRef is a field of the pod."""

    model_config = pydantic.ConfigDict(
        json_schema_extra=rules(
            Rule(
                "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].exists_one(x, x)",
                "valueFrom names one of secretKeyRef, configMapKeyRef and fieldRef",
            )
        )
    )


class EnvVar(Spec):
    """An environment variable."""

    name: Annotated[
        str,
        pydantic.Field(min_length=1, max_length=253),
        Spelling("^[-._a-zA-Z][-._a-zA-Z0-9]*$", "the name of an environment variable"),
        Rule(
            "!self.startsWith('BALLAST_')",
            "BALLAST_ variables are set by the fields of this object",
            '"\'" + self + "\' begins with BALLAST_: the worker\'s own settings are fields of this object"',
        ),
    ]
    """name is the name of the variable; it does not begin with BALLAST_."""
    value: Annotated[str, pydantic.Field(max_length=4096)] | None = None
    """value is its value."""
    value_from: EnvVarSource | None = None
    """valueFrom is where its value comes from."""

    model_config = pydantic.ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!(has(self.value) && has(self.valueFrom))",
                "env has value and valueFrom: keep one of them",
                '"env \'" + self.name + "\' has value and valueFrom: keep one of them"',
            )
        )
    )


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Spec):
    """A taint of nodes that does not keep the workers away."""

    key: Annotated[str, pydantic.Field(max_length=316)] | None = None
    """key is the key of the taint; every key where left out."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """operator is Equal (value must be the taint's) or Exists (any value)."""
    value: LabelValue | None = None
    """value is the value of the taint."""
    effect: TaintEffect | None = None
    """effect is the effect of the taint; every effect where left out."""
    toleration_seconds: Annotated[int, pydantic.Field(ge=0, le=(1 << 31) - 1)] | None = None
    """tolerationSeconds is how long a NoExecute taint is tolerated; for ever where left out."""


class Unsatisfiable(StrEnum):
    """What the scheduler does where pods cannot spread."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodePolicy(StrEnum):
    """Whether nodes that a pod cannot use are counted."""

    HONOR = "Honor"
    IGNORE = "Ignore"


class TopologySpreadConstraint(Spec):
    """How the workers of a pool spread."""

    max_skew: Annotated[int, pydantic.Field(ge=1, le=1000)] = 1
    """maxSkew is by how many workers two domains may differ."""
    topology_key: Annotated[str, pydantic.Field(min_length=1, max_length=316)]
    """topologyKey is the node label whose values are the domains."""
    when_unsatisfiable: Unsatisfiable
    """whenUnsatisfiable is DoNotSchedule or ScheduleAnyway."""
    min_domains: Annotated[int, pydantic.Field(ge=1, le=1000)] | None = None
    """minDomains is the least number of domains; only with DoNotSchedule."""
    node_affinity_policy: NodePolicy | None = None
    """nodeAffinityPolicy is Honor or Ignore."""
    node_taints_policy: NodePolicy | None = None
    """nodeTaintsPolicy is Honor or Ignore."""


class PodMetadata(Spec):
    """Additional labels and annotations of pods."""

    labels: Annotated[dict[LabelKey, LabelValue], pydantic.Field(max_length=32)] = pydantic.Field(default_factory=dict)
    """labels are additional labels; those that the operator sets stay as they are."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, pydantic.Field(max_length=4096)]], pydantic.Field(max_length=32)
    ] = pydantic.Field(default_factory=dict)
    """annotations are additional annotations."""
