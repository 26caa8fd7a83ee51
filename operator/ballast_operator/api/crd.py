# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of both kinds, made from their models."""

from __future__ import annotations

from typing import Any, Final

import pydantic

from ballast_contract import names
from ballast_operator.api.common import DNS_LABEL, Rule
from ballast_operator.api.inferencemodel import InferenceModel, InferenceModelSpec, InferenceModelStatus
from ballast_operator.api.schema import Schema, structural
from ballast_operator.api.weightbudget import WeightBudget, WeightBudgetSpec
from ballast_operator.api.weightbudget_status import WeightBudgetStatus

MAX_MODEL_NAME: Final = 63
"""A model's name names its Service."""

MAX_BUDGET_NAME: Final = 63 - len("-workers")
"""A budget's longest Service is `<name>-workers`."""

Column = tuple[str, str, str, int]
"""Heading, type, JSONPath and priority (1: only with -o wide)."""


def condition_path(condition: str, field: str = "status") -> str:
    """The JSONPath of a field of a condition."""
    return f'.status.conditions[?(@.type=="{condition}")].{field}'


INFERENCE_MODEL_COLUMNS: Final[tuple[Column, ...]] = (
    ("Residency", "string", ".spec.residency", 0),
    ("State", "string", ".status.residency", 0),
    ("Ready", "string", condition_path("Ready"), 0),
    ("Copies", "integer", ".status.readyReplicas", 0),
    ("Size", "string", ".status.size.weights", 0),
    ("Pool", "string", ".spec.budgetRef.name", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Workers", "string", ".status.workerNames", 1),
    ("Load", "integer", ".status.loadMilliseconds", 1),
    ("Reason", "string", condition_path("Ready", "reason"), 1),
    ("Message", "string", condition_path("Ready", "message"), 1),
)

WEIGHT_BUDGET_COLUMNS: Final[tuple[Column, ...]] = (
    ("Workers", "integer", ".status.readyReplicas", 0),
    ("Device", "string", ".status.device.budget", 0),
    ("Pinned", "string", ".status.device.pinned", 0),
    ("Free", "string", ".status.device.free", 0),
    ("Largest", "string", ".status.device.largestFree", 0),
    ("Frag", "integer", ".status.device.fragmentationPercent", 0),
    ("Fits", "string", condition_path("PlanFits"), 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Ready", "string", condition_path("Ready"), 1),
    ("Reason", "string", condition_path("Ready", "reason"), 1),
    ("Message", "string", condition_path("Ready", "message"), 1),
)


def inference_model() -> dict[str, Any]:
    """The definition of `inferencemodels.ballast.dev`."""
    schema = _object(
        InferenceModel,
        InferenceModelSpec,
        InferenceModelStatus,
        _name_rule(MAX_MODEL_NAME, "an InferenceModel names a Service"),
    )
    version = _version(schema, INFERENCE_MODEL_COLUMNS)
    version["selectableFields"] = [{"jsonPath": ".spec.budgetRef.name"}]
    return _definition("InferenceModel", "imodel", version)


def weight_budget() -> dict[str, Any]:
    """The definition of `weightbudgets.ballast.dev`."""
    schema = _object(
        WeightBudget,
        WeightBudgetSpec,
        WeightBudgetStatus,
        _name_rule(MAX_BUDGET_NAME, "a WeightBudget names a Service <name>-workers"),
    )
    version = _version(schema, WEIGHT_BUDGET_COLUMNS)
    version["subresources"]["scale"] = {
        "specReplicasPath": ".spec.workers.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _definition("WeightBudget", "wbudget", version)


def all_definitions() -> dict[str, dict[str, Any]]:
    """Every definition by its file name."""
    return {f"{crd['metadata']['name']}.yaml": crd for crd in (inference_model(), weight_budget())}


def _name_rule(limit: int, why: str) -> Rule:
    words = f"of lower-case letters, digits and '-', beginning with a letter, at most {limit} characters, because {why}"
    return Rule(
        f"self.metadata.name.size() <= {limit} && self.metadata.name.matches(r'^{DNS_LABEL}$')",
        f"metadata.name must be {words}",
        f'"metadata.name \'" + self.metadata.name + "\' must be {words}"',
    )


def _object(
    model: type[pydantic.BaseModel], spec: type[pydantic.BaseModel], status: type[pydantic.BaseModel], name_rule: Rule
) -> Schema:
    optional_spec = not model.model_fields["spec"].is_required()
    spec_schema = structural(spec)
    if optional_spec:
        spec_schema["default"] = {}
    return {
        "type": "object",
        "description": model.__doc__,
        "required": [] if optional_spec else ["spec"],
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": f"apiVersion is {names.API_GROUP}/{names.API_VERSION}.",
                "maxLength": 253,
            },
            "kind": {"type": "string", "description": f"kind is {model.__name__}.", "maxLength": 63},
            "metadata": {"type": "object"},
            "spec": spec_schema | {"description": f"spec is {_lower(spec.__doc__)}"},
            "status": structural(status, defaults=False) | {"description": f"status is {_lower(status.__doc__)}"},
        },
        "x-kubernetes-validations": [name_rule.as_schema()],
    }


def _lower(text: str | None) -> str:
    return text[0].lower() + text[1:] if text else ""


def _version(schema: Schema, columns: tuple[Column, ...]) -> dict[str, Any]:
    if not schema["required"]:
        del schema["required"]
    return {
        "name": names.API_VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
            for name, kind, path, priority in columns
        ],
    }


def _definition(kind: str, short_name: str, version: dict[str, Any]) -> dict[str, Any]:
    plural = kind.lower() + "s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.API_GROUP}"},
        "spec": {
            "group": names.API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["ballast"],
            },
            "versions": [version],
        },
    }
