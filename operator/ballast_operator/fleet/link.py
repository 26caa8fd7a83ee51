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
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_operator.fleet.authority import Identity
from ballast_operator.fleet.channel import Dial, Member
from ballast_operator.fleet.routes import Routes
from ballast_operator.fleet.view import HEARTBEAT_LIMIT_SECONDS, Difference, Obstacle, OutOfOrder, View

logger = logging.getLogger(__name__)

R = TypeVar("R")

LONGEST_CALL_SECONDS: Final = 300.0
"""No call is waited for longer."""

_CALL_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)
_OLD_CALLS_SECONDS: Final = LONGEST_CALL_SECONDS + 30.0
"""How long calls may still run on a connection that was replaced: all of them end before it does."""

_DISTRUST: Final = ("handshake failed", "verification check failed")
"""In gRPC's words for a server whose certificate we do not accept."""
_NOT_CONNECTED: Final = "failed to connect"
_TURNED_AWAY: Final = "Socket closed"
"""In gRPC's words for a server that ends a connection as soon as it is there."""


class CallError(Exception):
    """A control call failed: the word for it and the sentence, and the worker's reason, where it gave one of ours."""

    def __init__(self, message: str, *, code: grpc.StatusCode, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one worker is to serve. Equal generations mean equal models, and as many workers on its node."""

    generation: int
    models: tuple[pb.AssignedModel, ...]
    routes: Routes
    node_workers: int = 0
    """Workers of the pool on its node; 0 is not known."""


class Link:
    """Keeps one worker connected and its assignment asserted.

    The assignment is sent when it changes and at every connection, since another leader or an older process of the
    worker may have said something else meanwhile. `identity` is what we show and trust now; a connection that ends is
    replaced by one with the newest. `on_report` gets every difference; `on_refused` is called when the verdicts of an
    assignment or the obstacle of the view change; `on_epoch` when the worker has seen a higher epoch than ours, and says
    whether ours will be raised above it.
    """

    def __init__(
        self,
        member: Member,
        *,
        dial: Dial,
        identity: Callable[[], Identity],
        epoch: Callable[[], int],
        on_report: Callable[[View, Difference], None],
        on_refused: Callable[[View, frozenset[str]], None],
        on_epoch: Callable[[int], bool],
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
        self._dial, self._identity = dial, identity
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._open()
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
        """Let the worker alone: it goes on serving what it was last told. Calls in flight fail with CallError."""
        self._closed = True
        for task in (*self._tasks, *self._closing):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)
        await self._channel.close(None)

    def _open(self) -> None:
        self._shown = self._identity()
        self._channel = self._dial(self.member, self._shown)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call]

    def _replace_channel(self) -> None:
        """Go on with a connection that shows our newest identity; calls on the old one may end."""
        task = asyncio.create_task(self._channel.close(_OLD_CALLS_SECONDS), name=f"close {self.member.name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._open()

    async def _call(self, method: Callable[..., Awaitable[R]], request: object, seconds: float) -> R:
        try:
            return await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if (seen := _epoch_of(error)) is not None:
                self._outrun(seen)
            text = error.details() or error.code().name
            raise CallError(text, code=error.code(), reason=_reason_of(error)) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            # A channel that closes cancels its calls, as if their callers had been cancelled, which they are not.
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            raise CallError("its pod is gone, or has another address", code=grpc.StatusCode.CANCELLED) from error

    def _outrun(self, seen: int) -> Obstacle | None:
        """What it means that the worker has seen an epoch."""
        ours = self._epoch()
        if seen <= ours or self._on_epoch(seen):
            return None
        return Obstacle(
            Reason.EPOCH_REFUSED,
            f"it has seen epoch {seen}, implausibly far above the {ours} of this operator, and obeys no lower one: delete "
            "its pod",
        )

    def _cause(self, error: grpc.aio.AioRpcError) -> Obstacle | None:
        """Why a stream could not be had, where that is more than that nobody answers."""
        seen = _epoch_of(error)
        if seen is not None:
            return self._outrun(seen)
        text = error.details() or ""
        if any(words in text.lower() for words in _DISTRUST):
            words = text.rpartition("OPENSSL_internal:")[2].rpartition("UNAUTHENTICATED: ")[2].removesuffix(": OK")
            return Obstacle(
                Reason.CERTIFICATE_REFUSED,
                f"what answers at {self.member.address} shows a certificate that is not accepted: {words}",
            )
        if _TURNED_AWAY in text and _NOT_CONNECTED in text:
            return Obstacle(
                Reason.CERTIFICATE_REFUSED,
                "it ends connections from the operator at once, as it does when it does not accept a certificate: the log "
                "of its pod says why",
            )
        return None

    def _hindered(self, obstacle: Obstacle | None) -> None:
        if self.view.obstacle == obstacle:
            return
        self.view.obstacle = obstacle
        if obstacle is not None:
            logger.warning("worker %s is not heard: %s", self.member.name, obstacle.message)
        self._on_refused(self.view, frozenset())

    async def _listen(self) -> None:
        attempt = 0
        while True:
            heard_at = self.view.heard_at
            try:
                await self._follow()
            except (grpc.aio.AioRpcError, TimeoutError, OutOfOrder) as error:
                details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                logger.debug("worker %s: stream ended: %s", self.member.name, details or type(error).__name__)
                if isinstance(error, grpc.aio.AioRpcError):
                    self._hindered(self._cause(error))
                if isinstance(error, OutOfOrder):
                    self.view.sequence = 0
            self._connected, self.view.authorities = False, ""
            if self._identity() is not self._shown:
                self._replace_channel()
            attempt = 0 if self.view.heard_at != heard_at else attempt
            pause = _BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)]
            attempt += 1
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def _follow(self) -> None:
        """Take messages until the stream ends. Most are heartbeats, of each worker one in two seconds: they should cost little."""
        loop, limit = asyncio.get_running_loop(), self.view.limit
        resume = (self.view.instance_id, self.view.sequence) if self.view.sequence else ("", 0)
        call = self._stub.Watch(pb.WatchRequest(epoch=self._epoch(), instance_id=resume[0], sequence=resume[1]))
        try:
            async with asyncio.timeout(limit) as patience:
                while (message := await call.read()) is not grpc.aio.EOF:
                    patience.reschedule(loop.time() + limit)
                    self._take(message)
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
        self._hindered(self._outrun(self.view.epoch))
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
            node_workers=wanted.node_workers,
        )
        answer = await self._call(self._stub.ApplyAssignment, request, _CALL_SECONDS)
        if answer.instance_id != instance:  # it restarted meanwhile; its stream will say so, and wake us
            self._held = None
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


def _epoch_of(error: grpc.aio.AioRpcError) -> int | None:
    """The epoch that a refusal names as the highest seen."""
    for key, value in error.trailing_metadata() or ():
        if key == names.EPOCH_METADATA and str(value).isdigit():
            return int(value)
    return None


def _reason_of(error: grpc.aio.AioRpcError) -> Reason | None:
    """Why the worker cannot do as asked; a reason of another release is not known."""
    for key, value in error.trailing_metadata() or ():
        if key == names.REASON_METADATA and value in set(Reason):
            return Reason(str(value))
    return None
