# SPDX-License-Identifier: Apache-2.0
"""What a worker says of itself on the control channel: snapshots become messages, two messages become a change."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import ballast_contract
from ballast_contract.plan_lines import SCRATCH
from ballast_contract.residency import RESIDENCIES
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.control.models import Failure, ModelView, Stage
from ballast_worker.control.report_plan import plan_message
from ballast_worker.device.memory import Statistics
from ballast_worker.device.plan import Plan
from ballast_worker.host.store import HostStatistics
from ballast_worker.residency.demand import Decision
from ballast_worker.residency.protocol import CompactionResult, ModelSnapshot, ResidencySnapshot, Tier
from ballast_worker.serving.call import ModelLoad

_log = logging.getLogger(__name__)

VERSION: Final = ballast_contract.__version__


class Phase(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    REFUSED = "refused"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Condition:
    """A worker's phase, why it refuses, and progress in words."""

    phase: Phase = Phase.STARTING
    failure: Failure | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Everything a report is made from, at one moment. What is not known is None.

    Attributes:
        name, backend, device_kind: of the worker; the kind is empty before the device is touched.
        condition: see there.
        generation: of the last accepted assignment.
        models: every assigned model.
        plan, host_plan: of device and host memory, in force or refused.
        driver_used: device memory of this process as the driver counts it.
        residency, loads, memory, host: of the serving parts, once they exist.
    """

    name: str
    backend: str
    condition: Condition
    models: Mapping[str, ModelView]
    device_kind: str = ""
    generation: int | None = None
    plan: Plan | None = None
    host_plan: HostPlan | None = None
    driver_used: int | None = None
    residency: ResidencySnapshot | None = None
    loads: Mapping[str, ModelLoad] | None = None
    memory: Statistics | None = None
    host: HostStatistics | None = None


_PHASES: Final = {
    Phase.STARTING: pb.WORKER_PHASE_STARTING,
    Phase.REFUSED: pb.WORKER_PHASE_REFUSED,
    Phase.READY: pb.WORKER_PHASE_READY,
    Phase.DRAINING: pb.WORKER_PHASE_DRAINING,
}
_TIERS: Final = {Tier.NONE: pb.TIER_NONE, Tier.HOST: pb.TIER_HOST, Tier.DEVICE: pb.TIER_DEVICE}
_STAGES: Final = {
    Stage.PENDING: pb.MODEL_PHASE_PENDING,
    Stage.BUILDING: pb.MODEL_PHASE_BUILDING,
    Stage.BUILT: pb.MODEL_PHASE_BUILDING,
    Stage.SERVED: pb.MODEL_PHASE_PREPARED,
    Stage.REFUSED: pb.MODEL_PHASE_REFUSED,
}


def worker_state(view: WorkerView) -> pb.WorkerState:
    """The full state of a worker."""
    return pb.WorkerState(
        name=view.name,
        version=VERSION,
        backend=view.backend,
        device_kind=view.device_kind,
        condition=pb.WorkerCondition(
            phase=_PHASES[view.condition.phase],
            failure=failure(view.condition.failure),
            message=view.condition.message,
        ),
        assignment_generation=view.generation or 0,
        device=_device(view),
        host=_host(view.host),
        models=_models(view),
        plan=plan_of(view),
    )


def _models(view: WorkerView) -> Iterator[pb.ModelState]:
    """What is known of each model; one that cannot be told does not silence the others."""
    residents = {model.name: model for model in view.residency.models} if view.residency else {}
    loads = view.loads or {}
    for name, model in sorted(view.models.items()):
        try:
            yield model_state(model, residents.get(name), loads.get(name))
        except ValueError as error:
            _log.error("the state of model %r cannot be told and is left out: %s", name, error)


def model_state(view: ModelView, resident: ModelSnapshot | None, load: ModelLoad | None) -> pb.ModelState:
    """The state of one model: what serves it now decides the phase, what is wanted of it the rest."""
    phase, tier, problem = _STAGES[view.stage], pb.TIER_NONE, view.failure
    if view.serving is not None and resident is not None:
        tier = _TIERS[resident.tier]
        phase = pb.MODEL_PHASE_PREPARED
        if resident.tier is Tier.DEVICE:
            phase = pb.MODEL_PHASE_LOADED
        elif resident.loading:
            phase = pb.MODEL_PHASE_LOADING
        if problem is None and resident.refusal is not None:
            problem = Failure.of(resident.refusal)
    measured = view.serving or view.built
    bundle = measured.bundle if measured is not None else view.bundle
    digest = (resident.digest if resident is not None else None) or (bundle.digest if bundle is not None else "")
    return pb.ModelState(
        name=view.spec.name,
        object=view.spec.object,
        phase=phase,
        tier=tier,
        residency=RESIDENCIES[view.spec.residency],
        failure=failure(problem),
        message=view.message,
        digest=digest,
        weights_bytes=bundle.layout.nbytes if bundle is not None else 0,
        largest_tensor_bytes=bundle.layout.largest_tensor if bundle is not None else 0,
        scratch_bytes=measured.scratch_bytes if measured is not None else None,
        code_bytes=measured.code_bytes if measured is not None else None,
        load_milliseconds=(
            round(resident.load_seconds * 1000) if resident is not None and resident.load_seconds is not None else None
        ),
        requests_total=load.requests if load else 0,
        rows_total=load.rows if load else 0,
        compute_seconds_total=load.compute_seconds if load else 0.0,
        dispatches_total=load.dispatches if load else 0,
        queue_depth=load.queued if load else 0,
        max_batch_size=max_batch(view),
    )


def max_batch(view: ModelView) -> int:
    """Rows that are put together at most: the largest compiled size, cut by the spec; 1 without a batch dimension and 0
    before it is known.
    """
    if view.serving is None:
        return 0
    batch = view.serving.bundle.manifest.batch_dimension
    if batch is None:
        return 1
    largest = max(dict(program.dimensions)[batch] for program in view.serving.programs)
    return min(largest, view.spec.max_batch or largest)


def failure(found: Failure | None) -> pb.Failure | None:
    """A failure as a message."""
    if found is None:
        return None
    return pb.Failure(
        reason=found.reason.value, message=found.message, permanent=found.permanent, exit_code=found.exit_code
    )


def plan_of(view: WorkerView) -> pb.Plan | None:
    """The plan of a worker; None before it is made."""
    return plan_message(view.plan, view.host_plan, view.driver_used) if view.plan is not None else None


def decision(made: Decision) -> pb.Decision:
    """A decision of admission as a message."""
    return pb.Decision(
        sequence=made.sequence,
        unix_seconds=made.unix_seconds,
        model=made.model,
        kind=made.kind,
        verdict=made.verdict,
        needed_bytes=made.needed,
        free_bytes=made.free,
        largest_free_bytes=made.largest_free,
        candidates=[
            pb.Candidate(
                model=c.model,
                bytes=c.nbytes,
                priority=c.priority,
                queued=c.queued,
                chosen=c.chosen,
                excluded=c.excluded,
            )
            for c in made.candidates
        ],
        evicted=made.evicted,
        moved_bytes=made.moved,
        failure=failure(Failure.of(made.refusal)) if made.refusal is not None else None,
    )


def compaction(result: CompactionResult) -> pb.CompactMemoryResponse:
    """What a compaction did, as a message."""
    return pb.CompactMemoryResponse(
        reloaded=result.reloaded,
        resident_bytes_after=result.resident_bytes,
        largest_free_before=result.largest_free_before,
        largest_free_after=result.largest_free_after,
        fragmentation_before=result.fragmentation_before,
        fragmentation_after=result.fragmentation_after,
        moved_bytes=result.moved_bytes,
        seconds_until_moved=result.seconds_until_moved,
        seconds_until_callable=result.seconds_until_callable,
        not_reloaded=[
            pb.ModelVerdict(name=name, failure=failure(Failure.of(refusal)))
            for name, refusal in result.not_reloaded.items()
        ],
    )


def difference(before: pb.WorkerState, after: pb.WorkerState) -> pb.StateChange | None:
    """What changed between two states of one worker, or None. The plan and what names the worker are not part of it."""
    old = {model.name: model for model in before.models}
    new = {model.name: model for model in after.models}
    change = pb.StateChange(
        models=[model for name, model in new.items() if old.get(name) != model],
        removed=[name for name in old if name not in new],
    )
    if after.HasField("device") and before.device != after.device:
        change.device.CopyFrom(after.device)
    if after.HasField("host") and before.host != after.host:
        change.host.CopyFrom(after.host)
    if before.condition != after.condition:
        change.condition.CopyFrom(after.condition)
    if before.assignment_generation != after.assignment_generation:
        change.assignment_generation = after.assignment_generation
    return change if change.ByteSize() else None


def _device(view: WorkerView) -> pb.DeviceState | None:
    if view.plan is None or view.memory is None or view.residency is None:
        return None
    return pb.DeviceState(
        budget_bytes=view.plan.budget,
        weights_bytes=view.memory.capacity,
        pinned_bytes=view.memory.pinned,
        in_use_bytes=view.memory.in_use,
        free_bytes=view.memory.free,
        largest_free_bytes=view.memory.largest_free,
        scratch_bytes=view.plan.line(SCRATCH),
        loads_total=view.residency.loads,
        evictions_total=view.residency.evictions,
        admission_failures_total=view.residency.admission_failures,
        fallback_compactions_total=view.residency.fallback_compactions,
        largest_waiting_bytes=view.residency.largest_waiting_bytes,
        leaked_bytes=view.memory.leaked,
    )


def _host(host: HostStatistics | None) -> pb.HostState | None:
    if host is None:
        return None
    return pb.HostState(
        budget_bytes=host.budget,
        cached_bytes=host.cached,
        hits_total=host.hits,
        misses_total=host.misses,
    )
