# SPDX-License-Identifier: Apache-2.0
"""The end of a WeightBudget: its workers are told, its pods deleted, its host pools removed from the nodes, and its
finalizer goes in time whatever is dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import BUDGETS, PODS
from ballast_operator.fleet.link import CallError, Link
from ballast_operator.reconcile import host_pools
from ballast_operator.reconcile.conditions import moment
from ballast_operator.reconcile.pods import Pod
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.world import World
from ballast_operator.reconcile.writing import UNWATCHED_SECONDS, end

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 10
"""What a worker of a deleted budget may take: nobody can call its models any more, and its host pool is removed after."""

_LOOK_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 2.0


async def add_finalizer(world: World, obj: Object, *, by: Key) -> Object | Rejection:
    """Put our finalizer on a budget before anything is made for it; returns the object with it, or why that is refused."""
    present = obj["metadata"].get("finalizers") or []
    if names.FINALIZER in present:
        return obj
    try:
        answer = await set_finalizers(world.client, obj, [*present, names.FINALIZER])
    except errors.Refused as error:
        return Rejection(
            Reason.WRITE_REFUSED,
            f"the API server refuses our finalizer, without which nothing is made: {error.message}",
        )
    world.observe(BUDGETS, None, answer, by=by)
    return answer


async def finish(world: World, obj: Object, pool: Pool, pods: Sequence[Pod], *, began: float, by: Key) -> float | None:
    """One step of the end; returns when to look again, or None when nothing of ours holds the object.

    The time runs since `began` on our clock, or since the object's deletion, whichever is longer ago: a new leader does
    not begin anew, and a clock that is off only makes the end come sooner.
    """
    metadata = obj["metadata"]
    if names.FINALIZER not in metadata.get("finalizers", ()):
        return None
    deleted = (world.now() - moment(metadata["deletionTimestamp"])).total_seconds()
    limit = world.options.deletion_seconds
    waited = max(deleted, world.clock() - began)
    used = host_pools.note(pool, pods, now=world.clock())
    if waited < limit:
        if pods:
            await _end(world, obj, pods)
        await host_pools.remove(world, obj, pool, sorted(pool.host_nodes.keys() - used))
        if pods or pool.host_nodes:
            return _LOOK_SECONDS
    await host_pools.give_up(world, obj, pool, sorted(pool.host_nodes))
    if pods:
        where = ", ".join(f"{pod.name} on {pod.node or 'no node'}" for pod in pods[:5])
        note = f"{len(pods)} worker pods did not end within {limit:.0f} s and are left to Kubernetes: {where}"
        world.events.post(obj, BUDGETS.kind, "Warning", Reason.WORKER_GONE, "Delete", note)
    kept = [finalizer for finalizer in metadata["finalizers"] if finalizer != names.FINALIZER]
    try:
        answer = await set_finalizers(world.client, obj, kept)
    except errors.NotFound:
        return None
    except errors.Refused as error:
        note = f"the API server refuses to remove our finalizer: {error.message}"
        world.events.post(obj, BUDGETS.kind, "Warning", Reason.WRITE_REFUSED, "Delete", note)
        return UNWATCHED_SECONDS
    if answer["metadata"].get("finalizers"):
        world.observe(BUDGETS, None, answer, by=by)
    else:
        world.observe(BUDGETS, "DELETED", answer)
    return None


async def _end(world: World, obj: Object, pods: Sequence[Pod]) -> None:
    namespace = obj["metadata"]["namespace"]
    going = [pod for pod in pods if not pod.terminating]
    for pod in going:
        refusal = await end(
            world, PODS, namespace, pod.name, uid=pod.uid, grace_seconds=GRACE_SECONDS, priority=Priority.FENCING
        )
        if refusal:
            world.events.post(obj, BUDGETS.kind, "Warning", Reason.PODS_FORBIDDEN, "Delete", refusal)
    links = [link for pod in pods if (link := world.fleet.link(pod.uid)) is not None]
    await asyncio.gather(*(_release(link) for link in links))


async def _release(link: Link) -> None:
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await link.release()
    except (CallError, TimeoutError) as error:
        logger.debug("worker %s was not told that it may end: %s", link.member.name, error)


async def set_finalizers(client: Client, obj: Object, finalizers: Sequence[str]) -> Object:
    """Give a budget these finalizers, unless it has changed since it was read: Conflict. Raises NotFound, Refused."""
    metadata = obj["metadata"]
    body = {"metadata": {"finalizers": list(finalizers) or None, "resourceVersion": metadata["resourceVersion"]}}
    return await client.patch(BUDGETS, metadata["namespace"], metadata["name"], body, priority=Priority.FENCING)
