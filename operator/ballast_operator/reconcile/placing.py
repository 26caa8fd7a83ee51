# SPDX-License-Identifier: Apache-2.0
"""When models are placed, and from what: the inputs of the pack and the cause of the next one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import Coverage
from ballast_operator.placement.demand import Demand
from ballast_operator.placement.model import ModelDemand, MovePrice, WorkerCapacity
from ballast_operator.reconcile.bundles import Bundle
from ballast_operator.reconcile.wishes import Model, Rejection
from ballast_operator.reconcile.workers import Crew, Worker

GATHER_SECONDS: Final = 10.0
"""How long a placement waits for workers that are still starting, so that models do not move from one to the next."""

SAMPLE_SECONDS: Final = 15.0
_SAMPLE_SECONDS_PER_MODEL: Final = 0.012

_MEASURED_BYTES: Final = 16 << 20
"""Loads of smaller models say more about latency than about a rate."""


def sample_seconds(models: int) -> float:
    """How often the workers' counters are looked at: the less often the more models it takes time to look at."""
    return max(SAMPLE_SECONDS, _SAMPLE_SECONDS_PER_MODEL * models)


class Trigger(StrEnum):
    """Why models are placed."""

    START = "start"
    WORKERS = "workers"
    MODELS = "models"
    COMPUTE = "compute"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether models are placed now. `before` fields are of the last placement of this process."""

    workers: frozenset[str]
    """Names of workers that can take models."""
    starting: bool
    """A live worker pod has not reported yet."""
    reading: bool
    """The headers of a bundle are being read for the first time."""
    waited: float
    """Seconds since the set of workers last changed."""
    signature: object
    """What the models ask for."""
    room: object
    """What the workers have."""
    workers_before: frozenset[str] | None
    signature_before: object
    room_before: object
    assigned: frozenset[str]
    """Names of workers that any model is assigned to."""
    requested: bool
    """A repack was asked for by annotation."""
    compute_due: bool
    """Enough device time has passed."""
    unrecorded: bool
    """It is time to write down again what the API server refused."""


def trigger(now: Situation) -> Trigger | None:
    """The cause of a placement that is due now; None when nothing is to be placed, or workers are waited for."""
    if not now.workers:
        return None
    gathering = now.starting and now.waited < GATHER_SECONDS
    if now.workers_before is None:
        if gathering or (now.reading and now.waited < GATHER_SECONDS):
            return None
        if not now.assigned:
            return Trigger.START
        return Trigger.MODELS if now.workers == now.assigned else Trigger.WORKERS
    if now.workers != now.workers_before and not (gathering and now.workers > now.workers_before):
        return Trigger.WORKERS
    if now.requested:
        return Trigger.REQUEST
    if now.compute_due:
        return Trigger.COMPUTE
    if now.room != now.room_before:
        return Trigger.WORKERS
    return Trigger.MODELS if now.unrecorded or now.signature != now.signature_before else None


def demands(
    models: Sequence[Model],
    crew: Crew,
    *,
    bundle: Callable[[Model], Bundle | None],
    demand: Mapping[str, Demand],
    placed: Callable[[Model], bool],
) -> tuple[list[ModelDemand], dict[str, Rejection]]:
    """The models to pack, by uid; and those that cannot be placed yet, with the reason.

    A model whose headers were never read waits, unless it has a place already.
    """
    found: list[ModelDemand] = []
    waiting: dict[str, Rejection] = {}
    for model in models:
        reports = [state for worker in crew.reporting(model) if (state := worker.report(model)) is not None]
        header = bundle(model)
        weights = max((state.weights_bytes for state in reports), default=0) or (header.weights_bytes if header else 0)
        if not placed(model) and not weights and (header is None or header.rejection is not None):
            waiting[model.uid] = _waiting(header)
            continue
        usage = demand.get(model.object)
        found.append(
            ModelDemand(
                name=model.uid,
                title=model.name,
                weights_bytes=weights,
                code_bytes=max((state.code_bytes for state in reports), default=0),
                utilization=usage.utilization if usage is not None else 0.0,
                rate=usage.rate if usage is not None else 0.0,
                pinned=model.pinned,
                replicas=model.spec.replicas,
                all_workers=model.spec.coverage is Coverage.ALL_WORKERS,
            )
        )
    return found, waiting


def capacities(crew: Crew, uid_of: Mapping[str, str]) -> list[WorkerCapacity]:
    """The workers that can take models. `uid_of` gives the uid of the model that is called by a name.

    The workers of a pool are alike: one that has no plan yet is taken to have the room that another one has.
    """
    available = [worker for worker in crew if worker.available]
    alike = min((worker.capacity_bytes for worker in available if worker.capacity_bytes is not None), default=None)
    return [
        WorkerCapacity(
            name=worker.name,
            node=worker.pod.node,
            capacity_bytes=alike if worker.capacity_bytes is None else worker.capacity_bytes,
            holds=_held(worker, uid_of),
        )
        for worker in available
    ]


def move_price(crew: Crew, models: Sequence[ModelDemand], *, every_compute_seconds: int) -> MovePrice:
    """What a move costs, by the loads that the workers measured last, and for how long a better place counts.

    The fastest load of a large model came from a host copy, the slowest read its bundle first. A better place counts until
    the next repack, or until the counters are looked at next.
    """
    rates = [
        state.weights_bytes * 1000 / state.load_milliseconds
        for worker in crew
        if worker.heard and worker.view is not None
        for state in worker.view.models.values()
        if state.load_milliseconds and state.weights_bytes >= _MEASURED_BYTES
    ]
    spent = sum(model.utilization for model in models)
    return MovePrice(
        warm_bytes_per_second=max(rates, default=None),
        cold_bytes_per_second=min(rates, default=None),
        horizon_seconds=max(SAMPLE_SECONDS, every_compute_seconds / spent) if spent else math.inf,
    )


def signature(models: Sequence[ModelDemand]) -> object:
    """What has to change for a model to be placed anew between two repacks: everything but demand."""
    return frozenset((m.name, m.weights_bytes, m.pinned, m.replicas, m.all_workers) for m in models)


def room(workers: Sequence[WorkerCapacity]) -> object:
    """What has to change in the workers' memory for all models to be placed anew, in steps of an eighth or so.

    Each model that is measured shifts a plan a little; that is no reason to move others.
    """
    return frozenset((w.name, None if w.capacity_bytes is None else _step(w.capacity_bytes)) for w in workers)


def _step(size: int) -> int:
    """The leading bits of a size: two sizes of one step differ by less than an eighth."""
    return size >> max(0, size.bit_length() - 4) << max(0, size.bit_length() - 4)


def _waiting(header: Bundle | None) -> Rejection:
    if header is None or header.rejection is None:
        return Rejection(Reason.PENDING, "a worker is asked for the bundle's headers")
    return header.rejection


def _held(worker: Worker, uid_of: Mapping[str, str]) -> frozenset[str]:
    models = worker.view.models.values() if worker.view is not None else ()
    held = (m.name for m in models if m.tier in (pb.TIER_DEVICE, pb.TIER_HOST))
    return frozenset(uid_of[name] for name in held if name in uid_of)
