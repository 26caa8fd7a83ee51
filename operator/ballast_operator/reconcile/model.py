# SPDX-License-Identifier: Apache-2.0
"""One reconciliation of an InferenceModel: its Service, its EndpointSlices, its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import InferenceModelSpec
from ballast_operator.api.weightbudget import Addresses
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key, earliest
from ballast_operator.cluster.resources import BUDGETS, ENDPOINT_SLICES, MODELS, SERVICES
from ballast_operator.reconcile import crew, endpoints, holding, model_facts, model_status, naming
from ballast_operator.reconcile.endpoints import Ownership
from ballast_operator.reconcile.model_situation import Situation
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.rollout import Rollout
from ballast_operator.reconcile.silence import silence
from ballast_operator.reconcile.unknown_fields import unknown_fields
from ballast_operator.reconcile.wishes import (
    Model,
    Rejection,
    budget_name,
    deleting,
    judge_model,
    parse_budget,
    paused,
)
from ballast_operator.reconcile.workers import Worker
from ballast_operator.reconcile.world import World
from ballast_operator.reconcile.writing import UNWATCHED_SECONDS, delete, ensure, write_status

_URGENT: Final = ("replicas", "readyReplicas", "address", "lastFailure")

_FORMER_SECONDS: Final = 2.0


class ModelReconciler:
    """Reconciles InferenceModels; what placement decided it reads from `world.pools`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def reconcile(self, key: Key) -> float | None:
        """Bring one model nearer to what is wished; returns the seconds until it wants to be called again."""
        world = self._world
        obj = world.caches[MODELS].get(key.namespace, key.name)
        if obj is None or deleting(obj):
            world.metrics.forget_model(key.namespace, key.name)
            return None  # nothing of ours holds it; what belongs to it goes with its owner
        budget = world.caches[BUDGETS].get(key.namespace, budget_name(obj))
        pool = None if budget is None else world.pool(key.namespace, budget["metadata"]["name"])
        if budget is not None and pool is not None and pool.uid != budget["metadata"]["uid"]:
            pool = None
        placed = pool is not None and bool(pool.targets.get(obj["metadata"]["uid"]))
        verdict = judge_model(obj, budget=budget, namesakes=world.namesakes(obj), placed=placed)
        if isinstance(verdict, Rejection) or budget is None:
            leftover = await self._clear_slices(key)
            situation = Situation(verdict, leftover=leftover, unknown_fields=self._unknown(obj))
            later = await self._report(key, obj, situation, pool)
            return earliest(later, UNWATCHED_SECONDS if leftover else None)
        if pool is None or not pool.recovered:
            return None  # its budget is reconciled first, and calls for it then
        targets, holders = pool.targets.get(verdict.uid, ()), pool.holders.get(verdict.uid, frozenset())
        found = crew.crew_of(world, crew.involved(world, budget, targets, holders), leaving=pool.draining)
        rollout = holding.roll_model(world, pool, verdict, found)
        involved = found.involved(targets, {*holders, *rollout.hold})
        refused = _refused(world, verdict, involved)
        obstacle = _obstacle(obj, pool, placed=any(w.name in targets and w.pod.live for w in involved))
        wait = silence(
            obj,
            verdict,
            placeable=bool(pool.workers_seen),
            obstacle=obstacle,
            workers=involved,
            refused=bool(refused),
            now=world.now(),
        )
        if wait is not None:
            return wait
        own = _own_address(budget, pool)
        conflict, leftover, again = "" if own else pool.unaddressed, "", None
        if own and not paused(obj):
            conflict, again = await self._service(key, obj, verdict)
            held = world.caches[SERVICES].get(key.namespace, key.name)
            if endpoints.ownership(held, uid=verdict.uid) is Ownership.OURS:
                refusal = await self._slices(key, obj, verdict, involved, rollout)
                conflict = conflict or refusal
                again = again or (UNWATCHED_SECONDS if conflict else None)
        elif own:
            held = world.caches[SERVICES].get(key.namespace, key.name)
            if targets and endpoints.ownership(held, uid=verdict.uid) is not Ownership.OURS:
                conflict = f"there is no Service '{key.name}' of this model, and none is made while it is paused"
        elif not paused(obj):
            leftover = await self._withdraw(key, verdict)
            again = UNWATCHED_SECONDS if leftover else None
        situation = Situation(
            verdict=verdict,
            workers=involved,
            targets=targets,
            rollout=rollout,
            refused=refused,
            obstacle=obstacle,
            crowding=_crowding(pool, verdict.uid),
            conflict=conflict,
            leftover=leftover,
            bundle=pool.bundles.get(verdict.source),
            unknown_fields=self._unknown(obj),
            paused=paused(obj),
            own_address=own,
        )
        later = await self._report(key, obj, situation, pool)
        return earliest(again, later, _first_reports(involved))

    @staticmethod
    def _unknown(obj: Object) -> Sequence[str]:
        return unknown_fields(obj, InferenceModelSpec)

    async def _service(self, key: Key, obj: Object, model: Model) -> tuple[str, float | None]:
        """Make or keep the model's Service; returns what stands in its way and when to look again."""
        world = self._world
        held = world.caches[SERVICES].get(key.namespace, key.name)
        if endpoints.ownership(held, uid=model.uid) is Ownership.FORMER:
            text = f"Service '{key.name}' belongs to an earlier InferenceModel of this name and is waited for to go"
            return text, _FORMER_SECONDS
        text = await ensure(world, SERVICES, endpoints.service(model, naming.owner(MODELS, obj)), uid=model.uid, by=key)
        return text, UNWATCHED_SECONDS if text else None

    async def _slices(self, key: Key, obj: Object, model: Model, involved: Sequence[Worker], rollout: Rollout) -> str:
        """Write the endpoints as they should be; returns what stands in their way."""
        world, obstacle = self._world, ""
        existing = world.caches[ENDPOINT_SLICES].group("service", key.namespace, key.name)
        ours = [s for s in existing if naming.owner_uid(s) == model.uid]
        plan = endpoints.plan_slices(
            model,
            workers=involved,
            serve=rollout.serve,
            existing=ours,
            owner=naming.owner(MODELS, obj),
        )
        for body in plan.write:
            obstacle = await ensure(world, ENDPOINT_SLICES, body, uid=model.uid, by=key) or obstacle
        for stale in plan.delete:
            obstacle = await delete(world, ENDPOINT_SLICES, stale, by=key) or obstacle
        return obstacle

    async def _withdraw(self, key: Key, model: Model) -> str:
        """Remove the Service of a model that is called at the pool's; returns why something of it is left."""
        obstacle = await self._clear_slices(key)
        held = self._world.caches[SERVICES].get(key.namespace, key.name)
        ours = endpoints.ownership(held, uid=model.uid) is Ownership.OURS
        if held is not None and ours and "deletionTimestamp" not in held["metadata"]:
            obstacle = await delete(self._world, SERVICES, held, by=key) or obstacle
        return obstacle

    async def _clear_slices(self, key: Key) -> str:
        """Remove the endpoints of a model, and not its Service, which keeps its address; returns why some are left."""
        world, obstacle = self._world, ""
        obj = world.caches[MODELS].get(key.namespace, key.name)
        for held in world.caches[ENDPOINT_SLICES].group("service", key.namespace, key.name):
            if obj is not None and naming.owner_uid(held) == obj["metadata"]["uid"]:
                obstacle = await delete(world, ENDPOINT_SLICES, held, by=key) or obstacle
        return obstacle

    async def _report(self, key: Key, obj: Object, situation: Situation, pool: Pool | None) -> float | None:
        world = self._world
        current = world.caches[MODELS].get(key.namespace, key.name)
        if current is None or current["metadata"]["uid"] != obj["metadata"]["uid"]:
            return None
        existing = current.get("status") or {}
        figures_at = pool.model_figures_at if pool is not None else {}
        uid = obj["metadata"]["uid"]
        waited = world.clock() - figures_at.get(uid, float("-inf"))
        model = situation.verdict
        facts = model_facts.facts(situation, existing.get("conditions", ()))
        world.metrics.model_ready.labels(key.namespace, key.name).set(facts["Ready"].holds)
        pinned = isinstance(model, Model) and model.spec.residency.value != "unpinned"
        try:
            written = await write_status(
                world,
                MODELS,
                current,
                facts,
                model_status.body(situation, existing, moment=world.now()),
                by=key,
                urgent=(*_URGENT, "residency") if pinned else _URGENT,
                figures_due=waited >= world.options.figures_seconds,
            )
        except errors.NotFound:
            return None
        if written:
            figures_at[uid] = world.clock()
        return max(0.5, world.options.figures_seconds - waited) if written is None else None


def _own_address(budget: Object, pool: Pool) -> bool:
    """Whether models of the pool get a Service each."""
    spec = parse_budget(budget)
    wanted = isinstance(spec, Rejection) or spec.serving.addresses is Addresses.PER_MODEL
    return wanted and not pool.crowded


def _obstacle(obj: Object, pool: Pool, *, placed: bool) -> Rejection | None:
    """Why the model has fewer workers than it wants."""
    if pool.halted is not None and not placed:
        return pool.halted
    found = pool.obstacles.get(obj["metadata"]["uid"])
    if found is None and paused(obj) and not placed:
        return Rejection(
            Reason.PAUSED, f"it is paused, so no worker is chosen: remove its annotation {names.ANNOTATION_PAUSED}"
        )
    return found


def _refused(world: World, model: Model, workers: Sequence[Worker]) -> dict[str, pb.Failure]:
    found = {}
    for worker in workers:
        link = world.fleet.link(worker.uid)
        failure = link.refused.get(model.served_name) if link is not None else None
        if failure is not None and link is not None:
            found[link.member.uid] = failure
    return found


def _first_reports(workers: Sequence[Worker]) -> float | None:
    """Seconds until the first reports that are due have come or are late: nobody else calls for the model then."""
    due = [w.view.heard_at + w.view.limit - w.now for w in workers if w.view is not None and w.awaited]
    return max(0.1, min(due)) if due else None


def _crowding(pool: Pool, uid: str) -> str:
    placement = pool.placements.get(uid)
    return placement.message if placement is not None and placement.oversubscribed else ""
