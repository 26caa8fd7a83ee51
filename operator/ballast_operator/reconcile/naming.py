# SPDX-License-Identifier: Apache-2.0
"""Names, labels and owner references of what the operator makes."""

from __future__ import annotations

import random
from typing import Any, Final

from ballast_contract import names
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import BUDGETS, MANAGED_BY, MANAGED_LABEL, Resource

ANNOTATION_SPEC_HASH: Final = f"{names.API_GROUP}/spec-hash"
"""On a pod: the part of its WeightBudget's spec that it was made from. Another hash means: replace it."""

ANNOTATION_UPDATE_TOKEN: Final = f"{names.API_GROUP}/update-token"
"""On a pod: the value of `ballast.dev/update` when it was made."""

SLICE_MANAGER: Final = f"operator.{names.API_GROUP}"
"""Value of `endpointslice.kubernetes.io/managed-by`: keeps Kubernetes' own controllers away."""

COMPONENT_LABEL: Final = "app.kubernetes.io/component"

CONFIG: Final = "config"
"""The component that a worker configuration is, and the volume that brings it into a pod."""

SERVICE_LABEL: Final = "kubernetes.io/service-name"
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


def pod_name(budget: str, rng: random.Random) -> str:
    """A name for a new worker pod: five letters and digits that spell nothing."""
    return f"{budget}-{''.join(rng.choice(_LETTERS) for _ in range(5))}"


def pool_service(budget: str) -> str:
    """The Service in front of every worker of a pool."""
    return f"{budget}-pool"


def headless_service(budget: str) -> str:
    """The Service that gives every worker a DNS name."""
    return f"{budget}-workers"


def demand_map(budget: str) -> str:
    """The ConfigMap that keeps what was learnt of the models' demand."""
    return f"{budget}-demand"


def labels(*, component: str, budget: str, model: str | None = None) -> dict[str, str]:
    """The labels of everything that belongs to a budget, or to a model of it."""
    found = {
        "app.kubernetes.io/name": "ballast",
        "app.kubernetes.io/instance": budget,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/part-of": "ballast",
        MANAGED_LABEL: MANAGED_BY,
        names.LABEL_BUDGET: budget,
    }
    if model is not None:
        found[names.LABEL_MODEL] = model
    return found


def worker_selector(budget: str) -> dict[str, str]:
    """The labels that select the worker pods of a budget; they never change."""
    return {names.LABEL_BUDGET: budget, COMPONENT_LABEL: "worker"}


def owner(resource: Resource, obj: Object, *, controls: bool = True) -> list[dict[str, Any]]:
    """The owner reference to an object of ours: its controller, or one owner among others."""
    metadata = obj["metadata"]
    reference = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return [{**reference, "controller": True, "blockOwnerDeletion": True} if controls else reference]


def owner_uid(obj: Object) -> str | None:
    """The uid of the object's controller, or None."""
    return _controller(obj).get("uid")


def owner_kind(obj: Object) -> str | None:
    """The kind of the object's controller, or None."""
    return _controller(obj).get("kind")


def budget_of(obj: Object) -> str | None:
    """The name of the WeightBudget that controls the object, or None; labels can be taken away, this cannot be mistaken."""
    return _controller(obj).get("name") if owner_kind(obj) == BUDGETS.kind else None


def _controller(obj: Object) -> Object:
    references = obj["metadata"].get("ownerReferences", ())
    return next((reference for reference in references if reference.get("controller")), {})


def is_ours(obj: Object) -> bool:
    """Whether the operator made the object."""
    return bool(obj["metadata"].get("labels", {}).get(MANAGED_LABEL) == MANAGED_BY)


def contains(observed: Any, wanted: Any) -> bool:
    """Whether an observed object says what is wanted, whatever else it says: servers add defaults."""
    if isinstance(wanted, dict):
        return isinstance(observed, dict) and all(contains(observed.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(observed, list)
            and len(observed) == len(wanted)
            and all(contains(o, w) for o, w in zip(observed, wanted, strict=True))
        )
    return bool(observed == wanted)
