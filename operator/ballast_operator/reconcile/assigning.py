# SPDX-License-Identifier: Apache-2.0
"""Where the models of a pool are to be: what a placement is made from, the pack, and its record in their statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import PlacementMode, WeightBudgetSpec
from ballast_operator.cluster import errors
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import MODELS
from ballast_operator.placement.model import ModelDemand, MovePrice, Packed, Packing, WorkerCapacity
from ballast_operator.placement.packing import pack
from ballast_operator.reconcile import placing
from ballast_operator.reconcile.placing import Trigger
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.wishes import Model
from ballast_operator.reconcile.workers import Crew
from ballast_operator.reconcile.world import World, model_key
from ballast_operator.reconcile.writing import PLACEMENT_MANAGER, UNWATCHED_SECONDS

_PARALLEL: Final = 32


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a placement of a pool is made from."""

    models: Sequence[Model]
    demands: Sequence[ModelDemand]
    capacities: Sequence[WorkerCapacity]
    price: MovePrice


def gather(pool: Pool, spec: WeightBudgetSpec, models: Sequence[Model], crew: Crew) -> Inputs:
    """The inputs of a placement; models that cannot be placed yet are left in `pool.waiting`."""
    demands, waiting = placing.demands(
        models,
        crew,
        bundle=lambda model: pool.bundles.get(model.source),
        demand=pool.demand,
        placed=lambda model: bool(pool.targets.get(model.uid)),
    )
    pool.waiting = waiting
    uid_of = {model.served_name: model.uid for model in models}
    every = spec.placement.repack.every_compute_seconds
    price = placing.move_price(crew, demands, every_compute_seconds=every)
    return Inputs(models, demands, placing.capacities(crew, uid_of), price)


def situation(
    pool: Pool, inputs: Inputs, crew: Crew, *, now: float, requested: bool, compute_due: bool
) -> placing.Situation:
    """What decides whether models are placed now."""
    available = frozenset(worker.name for worker in inputs.capacities)
    if available != pool.workers_seen:
        pool.workers_seen, pool.workers_changed_at = available, now
    assigned = frozenset(name for workers in pool.targets.values() for name in workers)
    return placing.Situation(
        workers=available,
        starting=any(w.pod.live and not w.known and not w.leaving for w in crew),
        reading=any(m.uid in pool.waiting and pool.bundles.get(m.source) is None for m in inputs.models),
        waited=now - pool.workers_changed_at,
        signature=(placing.signature(inputs.demands), pool.frozen),  # one that is resumed gets what its pause denied it
        room=placing.room(inputs.capacities),
        workers_before=pool.workers_before,
        signature_before=pool.signature_before,
        room_before=pool.room_before,
        assigned=assigned,
        requested=requested,
        compute_due=compute_due,
        unrecorded=bool(pool.unrecorded) and now >= pool.record_after,
    )


async def place(world: World, pool: Pool, spec: WeightBudgetSpec, inputs: Inputs, *, settled: bool, by: Key) -> Packing:
    """Place models, write the new assignments down, and take them over.

    A model that finds no room keeps the workers that still serve it: nothing is gained by taking it away. One whose
    assignment the API server refuses stays where it is, and what is said is left in `pool.unrecorded`.
    """
    packing = _run_pack(pool, spec, inputs, settled=settled)
    known = {worker.name for worker in inputs.capacities}
    changed: dict[str, tuple[str, ...]] = {}
    for uid, placement in packing.placements.items():
        before = pool.targets.get(uid, ())
        if not placement.workers and placement.reason is not None and known.intersection(before):
            continue
        if set(before) != set(placement.workers) and uid not in pool.frozen:
            changed[uid] = placement.workers
    pool.unrecorded = {}
    if changed:
        pool.generation += 1
        await _write_down(world, pool, inputs.models, changed, by=by)
    pool.placements = packing.placements
    everywhere = spec.placement.mode is PlacementMode.ALL
    hysteresis = spec.placement.hysteresis_percent
    pool.packed = Packed(inputs.demands, inputs.capacities, hysteresis, everywhere, inputs.price)
    uids = {model.uid for model in inputs.models}
    for uid in pool.targets.keys() - uids:
        del pool.targets[uid]
    return packing


def _run_pack(
    pool: Pool,
    spec: WeightBudgetSpec,
    inputs: Inputs,
    *,
    settled: bool,
    without: frozenset[str] = frozenset(),
) -> Packing:
    """The pack of these inputs, without some workers."""
    return pack(
        inputs.demands,
        [worker for worker in inputs.capacities if worker.name not in without],
        pool.targets,
        hysteresis_percent=spec.placement.hysteresis_percent,
        everywhere=spec.placement.mode is PlacementMode.ALL,
        settled=settled,
        price=inputs.price,
    )


def stranded(pool: Pool, spec: WeightBudgetSpec, inputs: Inputs, worker: str) -> str:
    """Why the models of a worker would not fit elsewhere; nothing when they would."""
    packing = _run_pack(pool, spec, inputs, settled=True, without=frozenset({worker}))
    names_of = {model.uid: model.name for model in inputs.models}
    for uid, placement in packing.placements.items():
        if worker in pool.targets.get(uid, ()) and placement.reason is Reason.INSUFFICIENT_DEVICE_MEMORY:
            return (
                f"{worker} cannot be replaced: model {names_of[uid]} would find no room elsewhere: {placement.message}"
            )
    return ""


async def _write_down(
    world: World,
    pool: Pool,
    models: Sequence[Model],
    changed: Mapping[str, tuple[str, ...]],
    *,
    by: Key,
) -> None:
    """Write status.assignment of the changed models; only what was written is taken over, and what is refused told."""
    by_uid = {model.uid: model for model in models}
    slots = asyncio.Semaphore(_PARALLEL)
    generation = pool.generation

    async def one(uid: str, workers: tuple[str, ...]) -> None:
        model = by_uid[uid]
        metadata = {"namespace": model.namespace, "name": model.name, "uid": uid}
        body = {"metadata": metadata, "status": {"assignment": {"workers": list(workers), "generation": generation}}}
        async with slots:
            try:
                answer = await world.client.apply_status(
                    MODELS, body, manager=PLACEMENT_MANAGER, priority=Priority.READY
                )
            except (errors.NotFound, errors.Conflict):  # it is gone, or another object by now
                return
            except errors.Refused as error:
                text = f"the API server refuses status.assignment of InferenceModel '{model.name}': {error.message}"
                pool.unrecorded[uid], pool.record_after = text, world.clock() + UNWATCHED_SECONDS
                return
        pool.targets[uid] = workers
        world.observe(MODELS, None, answer, by=by)
        world.enqueue(model_key(model.namespace, model.name), 0.0)

    outcomes = await asyncio.gather(*(one(uid, workers) for uid, workers in changed.items()), return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failed:
        raise failed[0]


def describe(cause: Trigger, packing: Packing, generation: int) -> dict[str, object]:
    """status.lastRepack, without token and time."""
    return {
        "trigger": cause.value,
        "generation": generation,
        "modelsPlaced": len(packing.assignments),
        "modelsMoved": len(packing.moved),
        "workersChanged": len(packing.changed_workers),
    }
