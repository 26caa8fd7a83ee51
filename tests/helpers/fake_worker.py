# SPDX-License-Identifier: Apache-2.0
"""A worker's control service in the test process: real gRPC, scripted models, no device."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc

MIB = 1 << 20
DEVICE_BYTES = 1 << 30


class FakeWorker(control_pb2_grpc.ControlServicer):
    """Serves what it is assigned at once, unless told otherwise.

    `bundles` gives the weight bytes of a uri (default 10 MiB); a uri in `missing` is not found; a served name in `slow`
    stays pending until `finish`; one in `broken` is refused with the given failure. `log` keeps every call.
    """

    def __init__(self, name: str, *, node: str = "") -> None:
        self.name = name
        self.node = node
        self.instance = uuid.uuid4().hex
        self.bundles: dict[str, int] = {}
        self.missing: set[str] = set()
        self.slow: set[str] = set()
        self.broken: dict[str, pb.Failure] = {}
        self.log: list[tuple[str, Any]] = []
        self.epoch = 0
        self.generation = 0
        self.route_version = 0
        self.routes: dict[str, list[str]] = {}
        self.models: dict[str, pb.ModelState] = {}
        self.condition = pb.WorkerCondition(phase=pb.WORKER_PHASE_READY)
        self.device = pb.DeviceState(
            budget_bytes=DEVICE_BYTES, free_bytes=512 * MIB, largest_free_bytes=512 * MIB, weights_bytes=900 * MIB
        )
        self.plan = pb.Plan(
            budget_bytes=DEVICE_BYTES,
            fits=True,
            minimum_bytes=100 * MIB,
            lines=[
                pb.PlanLine(line="context", bytes=64 * MIB, source="measured"),
                pb.PlanLine(line="code", bytes=10 * MIB, source="measured"),
                pb.PlanLine(line="scratch", bytes=50 * MIB, source="measured", knob="device.scratch"),
                pb.PlanLine(line="pinned weights", bytes=0, source="assigned"),
                pb.PlanLine(line="on-demand weights", bytes=800 * MIB, source="the remainder"),
                pb.PlanLine(line="slack", bytes=100 * MIB, source="configured", knob="device.weights.slackPercent"),
            ],
        )
        self.silent = False
        self.authorities: Callable[[], str] = lambda: ""
        """SHA-256 of the authorities that it trusts now."""
        self.released = False
        self.port = 0
        self._sequence = itertools.count(1)
        self._last = 0
        self._listeners: set[asyncio.Queue[pb.WatchResponse]] = set()
        self._server: grpc.aio.Server | None = None
        self._credentials: grpc.ServerCredentials | None = None

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen on a free loopback port, or again on the last one; with TLS where credentials are given, then or before."""
        self._credentials = credentials or self._credentials
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        address = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Vanish without a word."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def restart(self) -> None:
        """Be another process that still knows its assignment."""
        self.instance = uuid.uuid4().hex
        self.route_version = 0

    def terminate(self) -> None:
        """Get the kubelet's signal: serve on until released."""
        if self.condition.phase != pb.WORKER_PHASE_DRAINING:
            self.change(condition=pb.WorkerCondition(phase=pb.WORKER_PHASE_DRAINING))

    def finish(self, model: str) -> None:
        """A slow model is ready now."""
        self.slow.discard(model)
        state = self.models[model]
        self.change(_served(state))

    def change(self, *models: pb.ModelState, **fields: Any) -> None:
        """Report changed models, a device, a condition."""
        for state in models:
            self.models[state.name] = state
        for key, value in fields.items():
            setattr(self, key, value)
        self._tell(pb.StateChange(models=models, **fields))

    def calls(self, method: str) -> list[Any]:
        """Every request of a method."""
        return [request for name, request in self.log if name == method]

    # The service.

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        self.log.append(("Watch", request))
        self.epoch = max(self.epoch, request.epoch)
        changes: asyncio.Queue[pb.WatchResponse] = asyncio.Queue()
        self._listeners.add(changes)
        try:
            while self.silent:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            yield self._message(full=self._full())
            while True:
                try:
                    async with asyncio.timeout(0.5):
                        message = await changes.get()
                except TimeoutError:
                    message = self._message(heartbeat=pb.Heartbeat(authorities=self.authorities()))
                if not self.silent:
                    yield message
        finally:
            self._listeners.discard(changes)

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:  # noqa: N802
        self.log.append(("Inspect", request))
        if request.uri in self.missing:
            trailing = ((names.REASON_METADATA, Reason.SOURCE_NOT_FOUND.value),)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"nothing is at {request.uri}", trailing)
        weights = self.bundles.get(request.uri, 10 * MIB)
        return pb.InspectResponse(digest="sha256:" + "0" * 64, weights_bytes=weights, largest_tensor_bytes=weights // 2)

    async def ApplyAssignment(  # noqa: N802
        self, request: pb.ApplyAssignmentRequest, context: Any
    ) -> pb.ApplyAssignmentResponse:
        await self._fence(request.epoch, context)
        self.log.append(("ApplyAssignment", request))
        self.generation = request.generation
        if request.routes.base_version in (0, self.route_version):
            if not request.routes.base_version:
                self.routes = {}
            for route in request.routes.routes:
                self.routes[route.model] = [hop.worker for hop in route.workers]
            self.routes = {model: hops for model, hops in self.routes.items() if hops}
            self.route_version = request.routes.version
        asyncio.get_running_loop().call_soon(self._take_up, list(request.models))
        return pb.ApplyAssignmentResponse(
            instance_id=self.instance, generation=request.generation, route_version=self.route_version
        )

    async def CompactMemory(  # noqa: N802
        self, request: pb.CompactMemoryRequest, context: Any
    ) -> pb.CompactMemoryResponse:
        await self._fence(request.epoch, context)
        self.log.append(("CompactMemory", request))
        before = self.device.largest_free_bytes
        device = pb.DeviceState()
        device.CopyFrom(self.device)
        device.largest_free_bytes = device.free_bytes
        self.change(device=device)
        return pb.CompactMemoryResponse(
            largest_free_before=before,
            largest_free_after=device.largest_free_bytes,
            fragmentation_before=1 - before / device.free_bytes,
            moved_bytes=40 * MIB,
            seconds_until_moved=0.004,
            seconds_until_callable=0.005,
            reloaded=request.reload_models,
        )

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseResponse:  # noqa: N802
        self.log.append(("Release", request))
        self.released = self.condition.phase == pb.WORKER_PHASE_DRAINING  # else it serves on
        return pb.ReleaseResponse()

    async def _fence(self, epoch: int, context: Any) -> None:
        if epoch < self.epoch:
            context.set_trailing_metadata(((names.EPOCH_METADATA, str(self.epoch)),))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"epoch {epoch} is older than {self.epoch}")
        self.epoch = epoch

    def _take_up(self, assigned: list[pb.AssignedModel]) -> None:
        wanted = {model.name: model for model in assigned}
        removed = [name for name in self.models if name not in wanted]
        for name in removed:
            del self.models[name]
        changed = []
        for model in assigned:
            known = self.models.get(model.name)
            state = self._state(model)
            if known is None or (known.object, known.residency) != (state.object, state.residency):
                self.models[model.name] = state
                changed.append(state)
        self._tell(pb.StateChange(models=changed, removed=removed, assignment_generation=self.generation))

    def _state(self, model: pb.AssignedModel) -> pb.ModelState:
        weights = self.bundles.get(model.uri, 10 * MIB)
        state = pb.ModelState(
            name=model.name,
            object=model.object,
            residency=model.residency,
            phase=pb.MODEL_PHASE_PENDING,
            tier=pb.TIER_NONE,
            weights_bytes=weights,
            largest_tensor_bytes=weights // 2,
        )
        if model.name in self.broken:
            state.phase = pb.MODEL_PHASE_REFUSED
            state.failure.CopyFrom(self.broken[model.name])
            return state
        return state if model.name in self.slow else _served(state)

    def _full(self) -> pb.WorkerState:
        return pb.WorkerState(
            name=self.name,
            version="test",
            backend="cpu",
            condition=self.condition,
            assignment_generation=self.generation,
            device=self.device,
            models=self.models.values(),
            plan=self.plan,
        )

    def _tell(self, change: pb.StateChange) -> None:
        self._last = next(self._sequence)
        message = self._message(change=change)
        for listener in self._listeners:
            listener.put_nowait(message)

    def _message(self, **event: Any) -> pb.WatchResponse:
        return pb.WatchResponse(instance_id=self.instance, sequence=self._last, epoch=self.epoch, **event)


def _served(state: pb.ModelState) -> pb.ModelState:
    served = pb.ModelState()
    served.CopyFrom(state)
    served.digest = "sha256:" + "0" * 64
    served.scratch_bytes, served.code_bytes, served.load_milliseconds = 5 * MIB, MIB, 3
    if state.residency == pb.RESIDENCY_DEVICE:
        served.phase, served.tier = pb.MODEL_PHASE_LOADED, pb.TIER_DEVICE
    elif state.residency == pb.RESIDENCY_SYSTEM:
        served.phase, served.tier = pb.MODEL_PHASE_PREPARED, pb.TIER_HOST
    else:
        served.phase, served.tier = pb.MODEL_PHASE_PREPARED, pb.TIER_NONE
    return served
