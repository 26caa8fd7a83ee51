# SPDX-License-Identifier: Apache-2.0
"""Model stores that only one node can mount: why workers on other nodes do not start."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import CLAIMS
from ballast_operator.reconcile.conditions import moment
from ballast_operator.reconcile.pods import Pod, Trouble
from ballast_operator.reconcile.worker_config import claims
from ballast_operator.reconcile.world import World

PATIENCE_SECONDS: Final = 30.0
"""How long a pod may be pending before its stores are looked at."""

_SHARED: Final = frozenset({"ReadOnlyMany", "ReadWriteMany"})


def suspects(pods: Sequence[Pod], *, now: dt.datetime) -> bool:
    """Whether a pod has been pending for long beside one that has a node."""
    live = [pod for pod in pods if pod.live]
    late = [pod for pod in live if pod.pending and (now - moment(pod.created)).total_seconds() > PATIENCE_SECONDS]
    excused = (None, Reason.UNSCHEDULABLE)
    return any(
        (pod.trouble.reason if pod.trouble else None) in excused
        and any(other.node and other.node != pod.node for other in live if other is not pod)
        for pod in late
    )


def judge(claim: Object) -> Trouble | None:
    """What is wrong with a claim that workers of several nodes are to mount."""
    modes = (claim.get("spec") or {}).get("accessModes") or ()
    if _SHARED.intersection(modes):
        return None
    name = claim["metadata"]["name"]
    return Trouble(
        Reason.MODEL_STORE_NOT_SHARED,
        f"claim '{name}' of spec.modelStores has the access mode {', '.join(modes) or 'none'}, so only one node can mount it, "
        "and workers wait on another: use a claim with ReadOnlyMany or ReadWriteMany, or keep the workers on one node",
    )


async def trouble(world: World, namespace: str, spec: WeightBudgetSpec, pods: Sequence[Pod]) -> Trouble | None:
    """The store that keeps workers from starting, or none."""
    if not suspects(pods, now=world.now()):
        return None
    for name in claims(spec):
        try:
            found = judge(await world.client.get(CLAIMS, namespace, name))
        except (errors.NotFound, errors.Refused):
            # The scheduler says what is missing; what may not be read is not judged.
            continue
        if found is not None:
            return found
    return None
