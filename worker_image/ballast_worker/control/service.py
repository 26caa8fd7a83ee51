# SPDX-License-Identifier: Apache-2.0
"""The control service: epochs, statuses and messages around what the worker does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol

import grpc

from ballast_contract import names
from ballast_contract.config import ResidencyWish
from ballast_contract.reasons import Reason
from ballast_contract.residency import WISHES
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control import report
from ballast_worker.control.assignment import AssignmentError, NotKeptError
from ballast_worker.control.feed import Feed
from ballast_worker.control.models import Failure
from ballast_worker.control.refusals import Refusals, Refused
from ballast_worker.residency.demand import Decision, Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult

MAX_WATCHERS: Final = 8
"""Streams at once: each holds a thread of the server."""

_LONGEST_SECONDS: Final = 3600.0

_MODES: Final = {
    pb.COMPACTION_MODE_MOVE: CompactionMode.MOVE,
    pb.COMPACTION_MODE_FREE: CompactionMode.FREE,
}
_CODES: Final = {
    Reason.SOURCE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.BUNDLE_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SOURCE_CHANGED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.BUSY: grpc.StatusCode.ABORTED,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
}


class Controlled(Protocol):
    """What the service needs of the worker. Called on threads of the server; may block for as long as the answer takes."""

    @property
    def epoch(self) -> int:
        """The highest epoch seen."""
        ...

    def see_epoch(self, epoch: int) -> None:
        """Remember a higher epoch, before anything is done for it. Raises NotKeptError."""
        ...

    def inspect(self, uri: str, digest: str, timeout: float) -> Bundle | Refusal:
        """Read a bundle's headers. Raises BundleError."""
        ...

    def assign(self, request: pb.ApplyAssignmentRequest) -> tuple[int, dict[str, Failure]]:
        """Accept an assignment: what is held of the routes, and what is refused by now. Raises AssignmentError,
        NotKeptError.
        """
        ...

    def compact(self, mode: CompactionMode, reload: Sequence[str], timeout: float) -> CompactionResult | Refusal | None:
        """Compact; None while nothing is served yet."""
        ...

    def set_residency(self, name: str, wish: ResidencyWish, timeout: float) -> Refusal | None:
        """Change a wish. Raises KeyError for a model that is not served."""
        ...

    def model_state(self, name: str) -> pb.ModelState:
        """The state of one model. Raises KeyError."""
        ...

    def release(self) -> None:
        """A terminating worker may stop admitting."""
        ...

    def plan(self) -> pb.Plan | None:
        """The plan in force or refused; None before it is made."""
        ...

    def decisions(self) -> tuple[Decision, ...]:
        """Newest first."""
        ...


class ControlService(control_pb2_grpc.ControlServicer):
    """Implements `ballast.control.v1.Control`.

    Args:
        authorities: SHA-256 of the authorities that the worker trusts now; empty without TLS.
    """

    def __init__(
        self, worker: Controlled, feed: Feed, refusals: Refusals, authorities: Callable[[], str] = lambda: ""
    ) -> None:
        self._worker, self._feed = worker, feed
        self._refusals, self._authorities = refusals, authorities
        self._watchers = threading.BoundedSemaphore(MAX_WATCHERS)

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:  # noqa: N802
        """See the service."""
        self._admit(context, request.epoch, changes=False)
        if not self._watchers.acquire(blocking=False):
            self._abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watchers are connected already")
        try:
            yield from self._watch(request, context)
        finally:
            self._watchers.release()

    def _watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        """What the feed says, and in between, whenever they change, the authorities that are trusted here."""
        told = ""
        for message in self._feed.watch(
            instance_id=request.instance_id, sequence=request.sequence, active=context.is_active
        ):
            yield message
            if (trusted := self._authorities()) != told:
                told = trusted
                yield pb.WatchResponse(
                    instance_id=message.instance_id,
                    sequence=message.sequence,
                    epoch=message.epoch,
                    heartbeat=pb.Heartbeat(authorities=trusted),
                )

    def Inspect(self, request: pb.InspectRequest, context: grpc.ServicerContext) -> pb.InspectResponse:  # noqa: N802
        """See the service."""
        self._admit(context, request.epoch, changes=False)
        try:
            bundle = self._worker.inspect(request.uri, request.digest, _timeout(context))
        except BundleError as error:
            self._refuse(context, Refusal(Reason(error.reason), str(error)))
        if isinstance(bundle, Refusal):
            self._refuse(context, bundle)
        return pb.InspectResponse(
            digest=bundle.digest,
            name=bundle.manifest.name,
            weights_bytes=bundle.layout.nbytes,
            largest_tensor_bytes=bundle.layout.largest_tensor,
            tensors=len(bundle.layout.tensors),
            programs=len(bundle.manifest.programs),
            platforms=bundle.manifest.function.platforms,
        )

    def ApplyAssignment(  # noqa: N802
        self, request: pb.ApplyAssignmentRequest, context: grpc.ServicerContext
    ) -> pb.ApplyAssignmentResponse:
        """See the service."""
        self._admit(context, request.epoch, changes=True)
        try:
            version, refused = self._worker.assign(request)
        except AssignmentError as error:
            self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotKeptError as error:
            self._abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.ApplyAssignmentResponse(
            instance_id=self._feed.instance_id,
            generation=request.generation,
            route_version=version,
            refused=[
                pb.ModelVerdict(name=name, failure=report.failure(found)) for name, found in sorted(refused.items())
            ],
        )

    def CompactMemory(  # noqa: N802
        self, request: pb.CompactMemoryRequest, context: grpc.ServicerContext
    ) -> pb.CompactMemoryResponse:
        """See the service."""
        self._admit(context, request.epoch, changes=True)
        mode = _MODES.get(request.mode)
        if mode is None:
            self._abort(
                context, grpc.StatusCode.INVALID_ARGUMENT, "mode is COMPACTION_MODE_MOVE or COMPACTION_MODE_FREE"
            )
        result = self._worker.compact(mode, request.reload_models, _timeout(context))
        match result:
            case None:
                self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "nothing is served yet: see GetPlan")
            case Refusal():
                self._refuse(context, result)
        return report.compaction(result)

    def SetModelResidency(  # noqa: N802
        self, request: pb.SetModelResidencyRequest, context: grpc.ServicerContext
    ) -> pb.SetModelResidencyResponse:
        """See the service."""
        self._admit(context, request.epoch, changes=True)
        wish = WISHES.get(request.residency)
        if wish is None:
            self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, "residency is UNPINNED, SYSTEM or DEVICE")
        try:
            refusal = self._worker.set_residency(request.name, wish, _timeout(context))
            if refusal is not None:
                self._refuse(context, refusal)
            return pb.SetModelResidencyResponse(model=self._worker.model_state(request.name))
        except KeyError:
            self._abort(context, grpc.StatusCode.NOT_FOUND, f"this worker does not serve a model '{request.name}'")

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseResponse:  # noqa: N802
        """See the service."""
        self._admit(context, request.epoch, changes=True)
        self._worker.release()
        return pb.ReleaseResponse()

    def GetPlan(self, request: pb.GetPlanRequest, context: grpc.ServicerContext) -> pb.GetPlanResponse:  # noqa: N802
        """See the service."""
        self._admit(context, request.epoch, changes=False)
        return pb.GetPlanResponse(plan=self._worker.plan())

    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainResponse:  # noqa: N802
        """See the service."""
        self._admit(context, request.epoch, changes=False)
        found = [made for made in self._worker.decisions() if request.model in ("", made.model)]
        return pb.ExplainResponse(decisions=map(report.decision, found[: request.limit or None]))

    def _admit(self, context: grpc.ServicerContext, epoch: int, *, changes: bool) -> None:
        """Apply the rule of epochs; returns for a caller that may go on."""
        seen = self._worker.epoch
        if epoch == 0:
            if not changes or _loopback(context.peer()):
                return
            message = "a call that changes something needs an epoch"
        elif epoch < seen:
            message = f"epoch {epoch} is over: this worker has seen {seen}"
        else:
            try:
                if epoch > seen:
                    self._worker.see_epoch(epoch)
            except NotKeptError as error:
                self._abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
            return
        peer = context.peer()
        if peer:  # a caller that has left has none, and was not refused
            self._refusals.note(Refused.EPOCH, peer=peer.rpartition(":")[0], cause=message)
        context.set_trailing_metadata(((names.EPOCH_METADATA, str(seen)),))
        self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, message)

    def _refuse(self, context: grpc.ServicerContext, refusal: Refusal) -> NoReturn:
        context.set_trailing_metadata(((names.REASON_METADATA, refusal.reason.value),))
        self._abort(context, _code(refusal.reason), f"{refusal.reason}: {refusal.message}")

    @staticmethod
    def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
        context.abort(code, message)
        raise AssertionError  # abort has raised


def _timeout(context: grpc.ServicerContext) -> float:
    """Seconds that the caller still waits; grpc has no number for "for ever", only a very large one."""
    remaining = context.time_remaining()
    return _LONGEST_SECONDS if remaining is None else min(remaining, _LONGEST_SECONDS)


def _code(reason: Reason) -> grpc.StatusCode:
    return _CODES.get(reason, grpc.StatusCode.RESOURCE_EXHAUSTED)


def _loopback(peer: str) -> bool:
    return peer.startswith(("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D"))


def add_to(server: Any, service: ControlService) -> None:
    """Register the service."""
    register: Callable[..., None] = control_pb2_grpc.add_ControlServicer_to_server
    register(service, server)
