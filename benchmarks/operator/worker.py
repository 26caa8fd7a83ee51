# SPDX-License-Identifier: Apache-2.0
"""A simulated worker: the real control service with models that are served as soon as they are assigned."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

from ballast_contract import names, plan_lines
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc

_MIB: Final = 1 << 20
_HEARTBEAT_SECONDS: Final = 2.0
_DIGEST: Final = "sha256:" + "0" * 64

DEVICE_BYTES: Final = 1 << 30
MODEL_BYTES: Final = 10 * _MIB

_PLAN: Final = pb.Plan(
    budget_bytes=DEVICE_BYTES,
    fits=True,
    minimum_bytes=100 * _MIB,
    lines=[
        pb.PlanLine(line=plan_lines.CONTEXT, bytes=64 * _MIB, source="measured"),
        pb.PlanLine(line=plan_lines.CODE, bytes=60 * _MIB, source="measured"),
        pb.PlanLine(line=plan_lines.PINNED, bytes=100 * _MIB, source="assigned"),
        pb.PlanLine(line=plan_lines.ON_DEMAND, bytes=700 * _MIB, source="the remainder"),
        pb.PlanLine(line=plan_lines.SLACK, bytes=100 * _MIB, source="configured", knob="device.weights.slackPercent"),
    ],
)


class SimulatedWorker(control_pb2_grpc.ControlServicer):
    """Holds its assignment and reports it; a heartbeat every two seconds, as the real worker sends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._instance = uuid.uuid4().hex
        self._epoch = 0
        self._generation = 0
        self._route_version = 0
        self._models: dict[str, pb.ModelState] = {}
        self._numbers = itertools.count(1)
        self._sequence = 0
        self._listeners: set[asyncio.Queue[pb.WatchResponse]] = set()

    def move(self, model: str, tier: pb.Tier) -> float:
        """Put the weights of a model on another tier and report it; returns when, in monotonic seconds."""
        state = pb.ModelState()
        state.CopyFrom(self._models[model])
        state.tier = tier
        state.phase = pb.MODEL_PHASE_LOADED if tier == pb.TIER_DEVICE else pb.MODEL_PHASE_PREPARED
        self._models[model] = state
        moment = time.monotonic()
        self._tell(pb.StateChange(models=[state]))
        return moment

    def pinned(self) -> list[str]:
        """Models that are to stay on the device."""
        return [name for name, state in self._models.items() if state.residency == pb.RESIDENCY_DEVICE]

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Full state, changes, heartbeats."""
        del context
        self._epoch = max(self._epoch, request.epoch)
        changes: asyncio.Queue[pb.WatchResponse] = asyncio.Queue()
        self._listeners.add(changes)
        try:
            yield self._message(full=self._full())
            while True:
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        message = await changes.get()
                except TimeoutError:
                    message = self._message(heartbeat=pb.Heartbeat())
                yield message
        finally:
            self._listeners.discard(changes)

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:  # noqa: N802
        """Every bundle is of the same size."""
        del request, context
        return pb.InspectResponse(digest=_DIGEST, weights_bytes=MODEL_BYTES, largest_tensor_bytes=MODEL_BYTES // 2)

    async def ApplyAssignment(  # noqa: N802
        self, request: pb.ApplyAssignmentRequest, context: Any
    ) -> pb.ApplyAssignmentResponse:
        """Take the assignment up at once."""
        if request.epoch < self._epoch:
            context.set_trailing_metadata(((names.EPOCH_METADATA, str(self._epoch)),))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"epoch {request.epoch} is older")
        self._epoch, self._generation = request.epoch, request.generation
        if request.routes.base_version in (0, self._route_version):
            self._route_version = request.routes.version
        asyncio.get_running_loop().call_soon(self._take_up, request.models)
        return pb.ApplyAssignmentResponse(
            instance_id=self._instance, generation=request.generation, route_version=self._route_version
        )

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseResponse:  # noqa: N802
        """Taken, and without effect: no simulated worker ends by itself."""
        del request, context
        return pb.ReleaseResponse()

    def _take_up(self, assigned: Sequence[pb.AssignedModel]) -> None:
        before, self._models = self._models, {}
        changed = []
        for model in assigned:
            state = before.pop(model.name, None)
            if state is None or state.residency != model.residency:
                state = _served(model)
                changed.append(state)
            self._models[model.name] = state
        self._tell(pb.StateChange(models=changed, removed=before, assignment_generation=self._generation))

    def _full(self) -> pb.WorkerState:
        return pb.WorkerState(
            name=self._name,
            version="simulated",
            backend="cpu",
            condition=pb.WorkerCondition(phase=pb.WORKER_PHASE_READY),
            assignment_generation=self._generation,
            device=pb.DeviceState(
                budget_bytes=DEVICE_BYTES,
                free_bytes=512 * _MIB,
                largest_free_bytes=512 * _MIB,
                weights_bytes=860 * _MIB,
            ),
            models=self._models.values(),
            plan=_PLAN,
        )

    def _tell(self, change: pb.StateChange) -> None:
        self._sequence = next(self._numbers)
        message = self._message(change=change)
        for listener in self._listeners:
            listener.put_nowait(message)

    def _message(self, **event: Any) -> pb.WatchResponse:
        return pb.WatchResponse(instance_id=self._instance, sequence=self._sequence, epoch=self._epoch, **event)


def _served(model: pb.AssignedModel) -> pb.ModelState:
    device = model.residency == pb.RESIDENCY_DEVICE
    return pb.ModelState(
        name=model.name,
        object=model.object,
        residency=model.residency,
        phase=pb.MODEL_PHASE_LOADED if device else pb.MODEL_PHASE_PREPARED,
        tier=pb.TIER_DEVICE if device else pb.TIER_NONE,
        digest=_DIGEST,
        weights_bytes=MODEL_BYTES,
        largest_tensor_bytes=MODEL_BYTES // 2,
        scratch_bytes=5 * _MIB,
        code_bytes=_MIB,
        load_milliseconds=3,
    )
