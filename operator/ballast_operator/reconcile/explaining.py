# SPDX-License-Identifier: Apache-2.0
"""Why a model is where it is, as a page for a person: what was known at the last placement of its pool."""

from __future__ import annotations

import dataclasses
from typing import Any

from ballast_contract import validation
from ballast_operator.cluster.resources import MODELS
from ballast_operator.placement.explaining import explain
from ballast_operator.reconcile import wishes
from ballast_operator.reconcile.world import World


class UnknownModel(LookupError):  # noqa: N818 - an answer to a person, not a fault
    """No InferenceModel is called so; the message names the nearest."""


def explanation(world: World, namespace: str, name: str) -> dict[str, Any]:
    """The placement of one model: what it needs, where it is, every worker as a candidate.

    Args:
        world: What the operator knows.
        namespace: Of the InferenceModel.
        name: Its own name, or the name that clients call.

    Raises:
        UnknownModel: there is none.
    """
    known = [obj for obj in world.caches[MODELS] if obj["metadata"]["namespace"] == namespace]
    named = {wishes.served_name(obj): obj for obj in known} | {obj["metadata"]["name"]: obj for obj in known}
    obj = named.get(name)
    if obj is None:
        hint = validation.nearest(name, sorted(named))
        raise UnknownModel(
            f"no InferenceModel '{name}' in namespace '{namespace}'"
            + (f": did you mean '{hint}'?" if hint else f": it has {len(known)} of them")
        )
    uid, budget = obj["metadata"]["uid"], wishes.budget_name(obj)
    found: dict[str, Any] = {"name": obj["metadata"]["name"], "namespace": namespace, "budget": budget}
    pool = world.pool(namespace, budget)
    obstacle = (pool.obstacles.get(uid) or pool.waiting.get(uid)) if pool is not None else None
    message = obstacle.message if obstacle is not None else ""
    if pool is None or all(model.name != uid for model in pool.packed.models):
        return found | {"placed": False, "message": message or "it was not part of a placement yet", "candidates": []}
    packed = pool.packed
    model = next(model for model in packed.models if model.name == uid)
    placement, usage = pool.placements.get(uid), pool.demand.get(f"{namespace}/{obj['metadata']['name']}")
    return found | {
        "placed": bool(pool.targets.get(uid)),
        "message": message or (placement.message if placement is not None else ""),
        "wanted": placement.wanted if placement is not None else model.replicas,
        "pinned": model.pinned,
        "weightsBytes": model.weights_bytes,
        "codeBytes": model.code_bytes,
        "requestsPerSecond": usage.rate if usage is not None else 0.0,
        "deviceSecondsPerRequest": usage.cost if usage is not None else None,
        "utilization": model.utilization,
        "hysteresisPercent": packed.hysteresis_percent,
        "lastRepack": dict(pool.last_repack),
        "candidates": [dataclasses.asdict(candidate) for candidate in explain(uid, packed, pool.targets)],
    }
