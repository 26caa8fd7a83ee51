# SPDX-License-Identifier: Apache-2.0
"""Host pools that nobody needs any more, and their removal from the nodes: by a pod of the operator's own on each of them.

A pool is needed while a worker that shares it is on the node. Copies outlive their workers on purpose, so that the next
one reads no file; a pool without workers is kept for a while, and goes at once with its budget.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import BUDGETS, PODS
from ballast_operator.reconcile import host_memory, naming
from ballast_operator.reconcile.host_memory import NODE_DIRECTORY, Place, place_of
from ballast_operator.reconcile.options import Options
from ballast_operator.reconcile.pods import Pod
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.world import World

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 600.0
"""How long a pool is kept on a node without workers, while workers of other nodes share theirs."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at a removal."""

_PARALLEL: Final = 32
_DEADLINE_SECONDS: Final = 60


class _NotRemovedError(Exception):
    """A pod that was to remove a pool failed; the message has its last words."""


def recover(budget: Object, pool: Pool, *, now: float) -> None:
    """Read back on which nodes there are pools."""
    pool.host_nodes = dict.fromkeys((budget.get("status") or {}).get("hostNodes") or (), now)


def note(pool: Pool, found: Iterable[Pod], *, now: float) -> frozenset[str]:
    """Remember the nodes of workers that share a pool; returns them."""
    used = frozenset(pod.node for pod in found if pod.shares_host_pool and pod.node)
    pool.host_nodes |= dict.fromkeys(used, now)
    return used


async def tend(world: World, budget: Object, pool: Pool, found: Sequence[Pod], *, shared: bool) -> float | None:
    """Remove pools from nodes that have been without workers for long, or at once when none are shared any more.

    Returns the seconds until it wants to be called again.
    """
    now, limit = world.clock(), world.options.deletion_seconds
    used = note(pool, found, now=now)
    patience = IDLE_SECONDS if shared else 0.0
    waits = {node: patience - (now - seen) for node, seen in pool.host_nodes.items() if node not in used}
    idle = sorted(node for node, left in waits.items() if left <= 0)
    for node in pool.removing.keys() - set(idle):  # a worker came back
        await _discard(world, _name(place_of(budget), node))
    pool.removing = {node: pool.removing.get(node, now) for node in idle}
    late = [node for node, begun in pool.removing.items() if now - begun >= limit]
    await give_up(world, budget, pool, late)
    await remove(world, budget, pool, [node for node in idle if node not in late])
    return LOOK_SECONDS if pool.removing else min(waits.values(), default=None)


async def remove(world: World, budget: Object, pool: Pool, nodes: Sequence[str]) -> None:
    """Take one step of the removal from these nodes; those where it is done are forgotten."""
    place, slots = place_of(budget), asyncio.Semaphore(_PARALLEL)

    async def one(node: str) -> None:
        async with slots:
            try:
                if await _removed(world, place, node):
                    _forget(pool, node)
            except _NotRemovedError as error:
                pool.troubles[node] = str(error)
            except errors.ApiError as error:
                pool.troubles[node] = error.message

    await asyncio.gather(*(one(node) for node in nodes))


async def give_up(world: World, budget: Object, pool: Pool, nodes: Sequence[str]) -> None:
    """Leave the pools on these nodes, and say where they are and why."""
    if not nodes:
        return
    place = place_of(budget)
    why = next((pool.troubles[node] for node in nodes if node in pool.troubles), "no pod has run there in this time")
    note_ = (
        f"host memory is left on {', '.join(nodes[:5])}{f' and {len(nodes) - 5} more nodes' if len(nodes) > 5 else ''}: "
        f"{NODE_DIRECTORY / place.folder} could not be removed within {world.options.deletion_seconds:.0f} s ({why}); "
        "remove it there, or restart the node"
    )
    logger.warning("%s", note_)
    world.events.post(budget, BUDGETS.kind, "Warning", Reason.HOST_POOL_LEFT, "RemoveHostPool", note_)
    for node in nodes:
        _forget(pool, node)
        await _discard(world, _name(place, node))


def _forget(pool: Pool, node: str) -> None:
    for known in (pool.host_nodes, pool.removing, pool.troubles):
        known.pop(node, None)


async def _removed(world: World, place: Place, node: str) -> bool:
    """Make the pod, or look at it; returns whether it has done its work.

    Raises:
        _NotRemovedError: it could not; the next call makes another one.
    """
    body = _removal_pod(place, node, world.options)
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    try:
        pod = await world.client.get(PODS, namespace, name)
    except errors.NotFound:
        await world.client.create(PODS, body, priority=Priority.FENCING)
        return False
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return False
    await world.client.delete(
        PODS, namespace, name, uid=pod["metadata"]["uid"], grace_seconds=0, priority=Priority.FENCING
    )
    if status["phase"] == "Succeeded":
        return True
    ended = [c.get("state", {}).get("terminated", {}) for c in status.get("containerStatuses", ())]
    said = " ".join(text.strip() for one in ended if (text := one.get("message", "")))
    raise _NotRemovedError(said or status.get("message") or status.get("reason") or f"pod {namespace}/{name} failed")


async def _discard(world: World, name: str) -> None:
    namespace = world.options.namespace
    try:
        pod = await world.client.get(PODS, namespace, name)
        await world.client.delete(
            PODS, namespace, name, uid=pod["metadata"]["uid"], grace_seconds=0, priority=Priority.FENCING
        )
    except (errors.NotFound, errors.Conflict):
        return
    except errors.ApiError as error:
        logger.info("pod %s/%s is left: %s", namespace, name, error)


def _name(place: Place, node: str) -> str:
    """The same for each attempt, so that a new leader goes on with what the last one began."""
    return f"ballast-host-pool-{hashlib.sha256(f'{place.uid}/{node}'.encode()).hexdigest()[:16]}"


def _removal_pod(place: Place, node: str, options: Options) -> Object:
    """A pod that removes a pool from a node.

    It is in the operator's namespace: that of the budget may be on its way out, and then nothing can be made in it. It is
    bound to its node at once: no taint and no cordon is in its way.
    """
    labels = {
        "app.kubernetes.io/name": "ballast",
        naming.COMPONENT_LABEL: "host-pool-removal",
        "app.kubernetes.io/part-of": "ballast",
    }
    metadata = {"name": _name(place, node), "namespace": options.namespace, "labels": labels}
    spec: Object = {
        "nodeName": node,
        "containers": [host_memory.node_container("remove", place, options.operator_image, options=[])],
        "volumes": [host_memory.node_volume()],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _DEADLINE_SECONDS,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {"metadata": metadata, "spec": spec}
