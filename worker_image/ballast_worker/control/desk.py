# SPDX-License-Identifier: Apache-2.0
"""The worker as the control service sees it: calls from other threads, answered from snapshots or through the loops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final, TypeVar

from ballast_contract.config import ResidencyWish
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control import compactions, report
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError, AssignmentFile
from ballast_worker.control.lineup import Limits, Lineup
from ballast_worker.control.models import Failure
from ballast_worker.control.parts import Parts
from ballast_worker.residency.demand import Decision, Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult
from ballast_worker.serving.refusals import draining

T = TypeVar("T")

_INSPECT_SECONDS: Final = 1.5
"""Of an assignment's two seconds, what may be spent on reading headers; the rest comes with the stream."""


class Desk:
    """Implements `service.Controlled`. Everything may be called from any thread.

    Args:
        managed: an operator assigns; without one an assignment is refused.
        file: where assignments survive.
        lineup: the models.
        limits: what fits.
        post: runs an action on the control loop.
        view: everything at this moment.
        parts: what serves, once it does.
        accept: takes an accepted assignment and what is known of its models; called on the control loop.
        release: called on the control loop.
    """

    def __init__(
        self,
        *,
        managed: bool,
        file: AssignmentFile,
        lineup: Lineup,
        limits: Limits,
        post: Callable[[Callable[[], None]], None],
        view: Callable[[], report.WorkerView],
        parts: Callable[[], Parts | None],
        accept: Callable[[Assignment, Mapping[AssignedModel, Bundle | Failure]], None],
        release: Callable[[], None],
    ) -> None:
        self._managed, self._file, self._lineup, self._limits = managed, file, lineup, limits
        self._post, self._view, self._parts = post, view, parts
        self._accept, self._release = accept, release
        self._lock = threading.Lock()
        self._closed: Future[None] = Future()
        self._assignment = file.load() if managed else Assignment()

    @property
    def assignment(self) -> Assignment:
        """The last accepted one."""
        return self._assignment

    @property
    def epoch(self) -> int:
        """See `Controlled.epoch`."""
        return self._assignment.epoch

    def see_epoch(self, epoch: int) -> None:
        """See `Controlled.see_epoch`."""
        with self._lock:
            if epoch > self._assignment.epoch:
                self._keep(self._assignment.with_epoch(epoch))

    def inspect(self, uri: str, digest: str, timeout: float) -> Bundle | Refusal:
        """See `Controlled.inspect`. A file system that hangs holds a thread of the inspectors, never one of the server."""
        future = self._lineup.inspect(uri, digest)
        found = self._result(future, timeout, "the headers are not read yet, and")
        future.cancel()
        return found

    def assign(self, request: pb.ApplyAssignmentRequest) -> tuple[int, dict[str, Failure]]:
        """See `Controlled.assign`. Written to disk before it is answered; assignments are taken one at a time."""
        if not self._managed:
            raise AssignmentError("this worker has no operator: its models are those of its configuration")
        with self._lock:
            assignment = self._assignment.accept(request)
            self._keep(assignment)
            inspected = self._inspect_new(assignment.models)
            self._post(partial(self._accept, assignment, inspected))
            return assignment.routes.version, self._refused(assignment.models, inspected)

    def compact(self, mode: CompactionMode, reload: Sequence[str], timeout: float) -> CompactionResult | Refusal | None:
        """See `Controlled.compact`."""
        parts = self._parts()
        if parts is None:
            return None
        done: Future[CompactionResult | Refusal] = Future()

        def ended(result: CompactionResult | Refusal) -> None:
            self._post(partial(compactions.tell, mode, result))
            done.set_result(result)

        parts.compact(mode, tuple(reload), ended)
        return self._result(done, timeout, "the compaction goes on, but")

    def set_residency(self, name: str, wish: ResidencyWish, timeout: float) -> Refusal | None:
        """See `Controlled.set_residency`."""
        done: Future[Refusal | None] = Future()
        self._post(partial(self._lineup.override, name, wish, done))
        return self._result(done, timeout, "the change is under way, but")

    def model_state(self, name: str) -> pb.ModelState:
        """See `Controlled.model_state`."""
        view = self._view()
        residents = {model.name: model for model in view.residency.models} if view.residency else {}
        return report.model_state(view.models[name], residents.get(name), (view.loads or {}).get(name))

    def release(self) -> None:
        """See `Controlled.release`."""
        self._post(self._release)

    def plan(self) -> pb.Plan | None:
        """See `Controlled.plan`."""
        return report.plan_of(self._view())

    def decisions(self) -> tuple[Decision, ...]:
        """See `Controlled.decisions`."""
        parts = self._parts()
        return parts.residency.decisions() if parts is not None else ()

    def close(self) -> None:
        """The worker has ended: whoever waits for what will not be done any more is refused. Once, on the control loop."""
        self._closed.set_result(None)

    def _result(self, future: Future[T], timeout: float, what: str) -> T | Refusal:
        either: tuple[Future[Any], ...] = (future, self._closed)
        wait(either, timeout, FIRST_COMPLETED)
        if future.done() and not future.cancelled():
            return future.result()
        if self._closed.done():
            return draining()
        return Refusal(Reason.DEADLINE_EXCEEDED, f"{what} the call's deadline has passed")

    def _keep(self, assignment: Assignment) -> None:
        if assignment != self._assignment:
            self._file.save(assignment)
            self._assignment = assignment

    def _inspect_new(self, models: Sequence[AssignedModel]) -> dict[AssignedModel, Bundle | Failure]:
        """Headers of models that are new here, as far as they can be read in time; bytes that cannot fit are a failure."""
        views = dict(self._lineup.views)
        new = [m for m in models if m.name not in views or views[m.name].spec.source != m.source]
        deadline = time.monotonic() + _INSPECT_SECONDS
        futures = {model: self._lineup.inspect(model.uri, model.digest) for model in new}
        wait(futures.values(), timeout=max(0.0, deadline - time.monotonic()))
        found: dict[AssignedModel, Bundle | Failure] = {}
        for model, future in futures.items():
            if not future.done() or future.cancelled():
                continue
            error = future.exception()
            if error is None:
                bundle = future.result()
                found[model] = self._limits.check_bytes(bundle) or bundle
            elif isinstance(error, BundleError):
                found[model] = Failure.of(error)
        return found

    def _refused(
        self, models: Sequence[AssignedModel], inspected: Mapping[AssignedModel, Bundle | Failure]
    ) -> dict[str, Failure]:
        views = dict(self._lineup.views)
        refused = {}
        for model in models:
            found = inspected.get(model)
            view = views.get(model.name)
            if isinstance(found, Failure):
                refused[model.name] = found
            elif view is not None and view.spec == model and view.failure is not None:
                refused[model.name] = view.failure
        return refused
