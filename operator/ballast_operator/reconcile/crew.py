# SPDX-License-Identifier: Apache-2.0
"""The worker pods of a budget, made, joined and removed as the plan says."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Sequence
from typing import Final

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import BUDGETS, CONFIG_MAPS, PODS
from ballast_operator.fleet.channel import Member
from ballast_operator.fleet.link import CallError, Link
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.pods import Pod, PodPlan, Trouble
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.template import Template
from ballast_operator.reconcile.workers import Crew, Worker
from ballast_operator.reconcile.world import World
from ballast_operator.reconcile.writing import UNWATCHED_SECONDS, delete, end, ensure

logger = logging.getLogger(__name__)

_FORMER_SECONDS: Final = 1.0
_MOST_PATIENT_SECONDS: Final = 60.0
_BATCH: Final = 20

_HINT: Final = (
    "; spec.host.sharing is 'node', which takes a hostPath volume and an init container as root: set spec.host.sharing to "
    "none, and each worker keeps its own copies, or have the namespace labelled "
    "pod-security.kubernetes.io/enforce=privileged"
)


def members(world: World, budget: Object) -> list[Pod]:
    """The worker pods that this very budget owns."""
    metadata = budget["metadata"]
    found = world.caches[PODS].group("budget", metadata["namespace"], metadata["name"])
    return sorted((p for p in map(world.read_pod, found) if p.owner_uid == metadata["uid"]), key=lambda p: p.name)


def involved(world: World, budget: Object, targets: Collection[str], holders: Collection[str]) -> list[Pod]:
    """The worker pods of these names or uids that this very budget owns: a model does not look at all of a pool."""
    namespace, cache = budget["metadata"]["namespace"], world.caches[PODS]
    found = [obj for name in targets if (obj := cache.get(namespace, name)) is not None]
    found += [obj for uid in holders for obj in cache.group("uid", namespace, uid)]
    pods = {pod.uid: pod for pod in map(world.read_pod, found) if pod.owner_uid == budget["metadata"]["uid"]}
    return sorted(pods.values(), key=lambda p: p.name)


def join(world: World, namespace: str, budget: str, found: Sequence[Pod]) -> None:
    """Connect to every pod that has an address, and let go of those that are gone."""
    for pod in found:
        if pod.ip and not pod.finished:
            world.fleet.join(Member(namespace, budget, pod.name, pod.uid, pod.ip))
    present = {pod.uid for pod in found if not pod.finished}
    for link in world.fleet.links():
        member = link.member
        if (member.namespace, member.budget) == (namespace, budget) and member.uid not in present:
            world.fleet.leave(member.uid)


def crew_of(world: World, found: Sequence[Pod], *, leaving: frozenset[str] = frozenset()) -> Crew:
    """The pods with what they last reported.

    After minutes without an API server Kubernetes calls every pod not ready of whose node it has not heard again yet; one
    that we hear is as ready as its kubelet last said.
    """
    now = world.fleet.now()

    def worker(pod: Pod) -> Worker:
        seen = Worker(pod, world.fleet.view(pod.uid), now, leaving=pod.uid in leaving)
        if seen.heard and pod.out_of_sight:
            return dataclasses.replace(seen, pod=dataclasses.replace(pod, ready=True))
        return seen

    return Crew([worker(pod) for pod in found])


def all_trust(world: World, authorities: str) -> bool:
    """Whether every worker that runs, or is about to, has said that it trusts the authorities of this digest."""
    found = [pod for pod in map(world.read_pod, world.caches[PODS]) if pod.node and not pod.finished]
    views = [world.fleet.view(pod.uid) for pod in found]
    return all(view is not None and view.authorities == authorities for view in views)


async def carry_out(world: World, budget: Object, pool: Pool, template: Template, plan: PodPlan, *, by: Key) -> None:
    """Delete and create pods."""
    namespace, uid = budget["metadata"]["namespace"], budget["metadata"]["uid"]
    if pool.failed_in_a_row and plan == PodPlan() and _all_ready(world, budget):
        pool.failed_in_a_row = 0
    pool.undeleted, turned_away = None, False
    for pod, cause in plan.delete:
        held = world.caches[PODS].get(namespace, pod.name)
        if held is None or held["metadata"]["uid"] != pod.uid:
            continue
        refusal = await _delete_pod(world, held, by=by)
        if refusal:
            pool.undeleted = Trouble(Reason.PODS_FORBIDDEN, refusal)
            if pod.live:
                pool.draining |= {pod.uid}  # no model moves back to it
            continue
        if pod.finished and not turned_away:  # pods that a node turns away at once would be made without end
            turned_away = True
            _put_off(world, pool, most=_MOST_PATIENT_SECONDS)
        world.events.post(
            budget, BUDGETS.kind, "Normal", Reason.WORKER_DELETED, "Delete", f"deleted {pod.name}: {cause}"
        )
    if plan.create <= 0:
        pool.creation = None
        return
    if pool.undeleted is not None:  # pods that end at once and may not be deleted would be made without end
        pool.creation, pool.create_after = pool.undeleted, world.clock() + UNWATCHED_SECONDS
        return
    if world.clock() < pool.create_after:
        return
    obstacle = await world.certificates.ensure(namespace)
    if obstacle:
        pool.creation = Trouble(Reason.SECRET_CONFLICT, obstacle)
        pool.create_after = world.clock() + UNWATCHED_SECONDS
        return
    name = budget["metadata"]["name"]
    owner = naming.owner(BUDGETS, budget)
    config = template.config_map(
        namespace=namespace, labels=naming.labels(component=naming.CONFIG, budget=name), owner=owner
    )
    obstacle = await ensure(world, CONFIG_MAPS, config, uid=uid, by=by)
    if obstacle:
        goes = _goes(world.caches[CONFIG_MAPS].get(namespace, template.config_name), uid=uid)
        pool.creation = Trouble(Reason.PENDING if goes else Reason.CONFIG_MAP_CONFLICT, obstacle)
        _put_off(world, pool, most=_FORMER_SECONDS if goes else UNWATCHED_SECONDS)
        return
    token = budget["metadata"].get("annotations", {}).get(names.ANNOTATION_UPDATE, "")
    created = 0
    try:
        while created < plan.create:
            count = min(_BATCH, plan.create - created)
            bodies = [
                template.pod(naming.pod_name(name, world.rng), namespace=namespace, owner=owner, update_token=token)
                for _ in range(count)
            ]
            await _create(world, budget, bodies, by=by)
            created += count
    except errors.Refused as error:
        invalid = isinstance(error, errors.Invalid)
        pool.namespace_ending = isinstance(error, errors.Forbidden) and error.namespace_ending
        reason = Reason.INVALID_POD_TEMPLATE if invalid else Reason.PODS_FORBIDDEN
        hint = _HINT if not invalid and template.shares_host_pool and "hostPath" in error.message else ""
        pool.creation = Trouble(reason, f"the API server refuses worker pods: {error.message}{hint}")
        pool.create_after = world.clock() + UNWATCHED_SECONDS
        return
    pool.creation = None


def _goes(held: Object | None, *, uid: str) -> bool:
    """Whether what holds a name is of an earlier budget, or on its way out."""
    if held is None or not naming.is_ours(held):
        return False
    return naming.owner_uid(held) != uid or "deletionTimestamp" in held["metadata"]


def _put_off(world: World, pool: Pool, *, most: float) -> None:
    """Make no pod for twice as long as the last time."""
    pool.failed_in_a_row += 1
    pool.create_after = world.clock() + min(most, 2.0 ** min(pool.failed_in_a_row, 10))


def _all_ready(world: World, budget: Object) -> bool:
    """Whether no pod may still be turned away by its node."""
    return all(worker.pod.ready for worker in crew_of(world, members(world, budget)) if worker.pod.live)


async def _create(world: World, budget: Object, bodies: Sequence[Object], *, by: Key) -> None:
    """Create pods at once; those that came about are known even where others failed."""

    async def one(body: Object) -> None:
        made = await world.client.create(PODS, body, priority=Priority.READY)
        world.observe(PODS, None, made, by=by)
        note = f"created {made['metadata']['name']}"
        world.events.post(budget, BUDGETS.kind, "Normal", Reason.WORKER_CREATED, "Create", note)

    outcomes = await asyncio.gather(*(one(body) for body in bodies), return_exceptions=True)
    failed = [o for o in outcomes if isinstance(o, BaseException) and not isinstance(o, errors.AlreadyExists)]
    for other in failed[1:]:
        logger.warning("a worker pod of %s was not created either: %s", by, other)
    if failed:
        raise next((error for error in failed if not isinstance(error, errors.Refused)), failed[0])


async def _delete_pod(world: World, held: Object, *, by: Key) -> str:
    """Returns why the API server refuses that, or nothing."""
    metadata = held["metadata"]
    refusal = await end(world, PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"])
    if refusal:
        return refusal
    try:  # it goes on existing until it has ended; not counting it as a worker any more must not wait for the watch
        now = await world.client.get(PODS, metadata["namespace"], metadata["name"])
        world.observe(PODS, None, now, by=by)
    except errors.NotFound:
        world.observe(PODS, "DELETED", held, by=by)
    return ""


async def drop_old_configs(
    world: World, budget: Object, pool: Pool, template: Template, found: Sequence[Pod], *, by: Key
) -> None:
    """Delete configurations that neither the template nor any pod uses."""
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    used = {template.config_name, *(pod.config_name for pod in found)}
    for held in world.caches[CONFIG_MAPS].group("budget", namespace, name):
        metadata = held["metadata"]
        is_config = metadata.get("labels", {}).get(naming.COMPONENT_LABEL) == naming.CONFIG
        if is_config and naming.owner_uid(held) == budget["metadata"]["uid"] and metadata["name"] not in used:
            refusal = await delete(world, CONFIG_MAPS, held, by=by)
            if refusal:
                pool.undeleted = pool.undeleted or Trouble(Reason.CONFIG_MAP_CONFLICT, refusal)


def release_idle(world: World, pool: Pool, crew: Crew, holding: frozenset[str], *, by: Key) -> None:
    """Tell terminating workers whose models have moved, or can move nowhere, that they may end."""
    waiting = frozenset() if pool.namespace_ending else holding
    for worker in crew:
        link = world.fleet.link(worker.uid)
        if link is None or not worker.pod.terminating or worker.uid in waiting or worker.uid in pool.released:
            continue
        if worker.drains:  # one that has not got its signal yet would not know what it is released from
            pool.released.add(worker.uid)
            world.background(_release(world, pool, link, by), name=f"release {worker.name}")


async def _release(world: World, pool: Pool, link: Link, by: Key) -> None:
    try:
        await link.release()
    except CallError as error:
        logger.info("worker %s could not be told that it may end: %s", link.member.name, error)
        pool.released.discard(link.member.uid)
        world.enqueue(by, 2.0)
