# SPDX-License-Identifier: Apache-2.0
"""The connection to one worker: its stream of states, and the assignment that it is to hold."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_operator.fleet.channel import Dial, Member
from ballast_operator.fleet.routes import Routes
from ballast_operator.fleet.view import HEARTBEAT_LIMIT_SECONDS, Difference, OutOfOrder, View

logger = logging.getLogger(__name__)

R = TypeVar("R")

_CALL_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)


class CallError(Exception):
    """A control call failed: the worker's word for it and its sentence."""

    def __init__(self, message: str, *, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one worker is to serve. Equal generations mean equal models."""

    generation: int
    models: tuple[pb.AssignedModel, ...]
    routes: Routes


class Link:
    """Keeps one worker connected and its assignment asserted.

    The assignment is sent when it changes and at every connection, since another leader or an older process of the
    worker may have said something else meanwhile. `on_report` gets every difference; `on_refused` is called when the
    verdicts of an assignment change; `on_epoch` when the worker has seen a higher epoch than ours.
    """

    def __init__(
        self,
        member: Member,
        *,
        dial: Dial,
        epoch: Callable[[], int],
        on_report: Callable[[View, Difference], None],
        on_refused: Callable[[View, frozenset[str]], None],
        on_epoch: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
        heartbeat_limit: float = HEARTBEAT_LIMIT_SECONDS,
    ) -> None:
        self.member = member
        self.view = View(member, now=clock(), limit=heartbeat_limit)
        self.refused: dict[str, pb.Failure] = {}
        """Models of the last assignment that the worker will not serve, by name."""
        self._clock = clock
        self._epoch = epoch
        self._on_report, self._on_refused, self._on_epoch = on_report, on_refused, on_epoch
        self._channel = dial(member)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call]
        self._desired: Assignment | None = None
        self._accepted: int | None = None
        self._held: Routes | None = None
        self._connected = False
        self._wake = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._listen(), name=f"watch {member.name}"),
            asyncio.create_task(self._assert(), name=f"assign {member.name}"),
        ]

    @property
    def desired(self) -> Assignment | None:
        """The assignment that the worker is to hold."""
        return self._desired

    def assign(self, assignment: Assignment) -> None:
        """Say what the worker is to serve from now on; it is told as soon as it can be reached."""
        if self._desired == assignment:
            return
        self._desired = assignment
        self._wake.set()

    async def inspect(self, uri: str, digest: str, *, seconds: float = _CALL_SECONDS) -> pb.InspectResponse:
        """Read a bundle's headers. Raises CallError."""
        request = pb.InspectRequest(epoch=self._epoch(), uri=uri, digest=digest)
        return await self._call(self._stub.Inspect, request, seconds)

    async def compact(
        self, mode: pb.CompactionMode, reload_models: tuple[str, ...], *, seconds: float
    ) -> pb.CompactMemoryResponse:
        """Make the free device memory one block. Raises CallError."""
        request = pb.CompactMemoryRequest(epoch=self._epoch(), mode=mode, reload_models=reload_models)
        return await self._call(self._stub.CompactMemory, request, seconds)

    async def release(self) -> None:
        """Tell a terminating worker that its models have moved. Raises CallError."""
        await self._call(self._stub.Release, pb.ReleaseRequest(epoch=self._epoch()), _CALL_SECONDS)

    async def close(self) -> None:
        """Let the worker alone: it goes on serving what it was last told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)

    async def _call(self, method: Callable[..., Awaitable[R]], request: object, seconds: float) -> R:
        try:
            return await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            self._note_epoch(error)
            raise CallError(error.details() or error.code().name, code=error.code()) from error

    def _note_epoch(self, error: grpc.aio.AioRpcError) -> None:
        for key, value in error.trailing_metadata() or ():
            if key == names.EPOCH_METADATA and str(value).isdigit():
                self._note_seen_epoch(int(value))

    def _note_seen_epoch(self, seen: int) -> None:
        if seen > self._epoch():
            self._on_epoch(seen)

    async def _listen(self) -> None:
        attempt = 0
        while True:
            try:
                async for message in self._messages():
                    attempt = 0
                    self._take(message)
            except (grpc.aio.AioRpcError, TimeoutError, OutOfOrder) as error:
                details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                logger.debug("worker %s: stream ended: %s", self.member.name, details or type(error).__name__)
                if isinstance(error, grpc.aio.AioRpcError):
                    self._note_epoch(error)
                if isinstance(error, OutOfOrder):
                    self.view.sequence = 0
            self._connected = False
            pause = _BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)]
            attempt += 1
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def _messages(self) -> Any:
        resume = (self.view.instance_id, self.view.sequence) if self.view.sequence else ("", 0)
        call = self._stub.Watch(pb.WatchRequest(epoch=self._epoch(), instance_id=resume[0], sequence=resume[1]))
        try:
            while True:
                async with asyncio.timeout(self.view.limit):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                yield message
        finally:
            call.cancel()

    def _take(self, message: pb.WatchResponse) -> None:
        instance = self.view.instance_id
        first = not self._connected
        difference = self.view.take(message, now=self._clock())
        if self.view.instance_id != instance:
            self._held = None
        if first or self.view.instance_id != instance:
            self._connected, self._accepted = True, None
            difference.worker = True
            self._wake.set()
        self._note_seen_epoch(self.view.epoch)
        self._on_report(self.view, difference)

    async def _assert(self) -> None:
        attempt = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._connected or (wanted := self._desired) is None:
                continue
            if self._accepted == wanted.generation and self._held is wanted.routes:
                continue
            try:
                await self._send(wanted)
                attempt = 0
            except CallError as error:
                logger.warning("worker %s: assignment %d: %s", self.member.name, wanted.generation, error)
                await asyncio.sleep(_BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)])
                attempt += 1
                self._wake.set()

    async def _send(self, wanted: Assignment) -> None:
        instance = self.view.instance_id
        request = pb.ApplyAssignmentRequest(
            epoch=self._epoch(),
            generation=wanted.generation,
            models=wanted.models,
            routes=wanted.routes.since(self._held),
        )
        answer = await self._call(self._stub.ApplyAssignment, request, _CALL_SECONDS)
        if answer.instance_id != instance:  # it restarted meanwhile; its stream will say so
            self._held = None
            self._wake.set()
            return
        self._held = wanted.routes if answer.route_version == wanted.routes.version else None
        self._accepted = answer.generation
        if self._held is None or answer.generation != wanted.generation:
            raise CallError(
                f"the worker holds generation {answer.generation} and routes {answer.route_version}",
                code=grpc.StatusCode.ABORTED,
            )
        refused = {verdict.name: verdict.failure for verdict in answer.refused}
        changed = {m for m in refused.keys() | self.refused.keys() if refused.get(m) != self.refused.get(m)}
        self.refused = refused
        objects = {m.name: m.object for m in wanted.models}
        self._on_refused(self.view, frozenset(objects[m] for m in changed if objects.get(m)))
        if self._desired is not wanted:
            self._wake.set()
