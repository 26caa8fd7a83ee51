# SPDX-License-Identifier: Apache-2.0
"""What the device thread does: admits calls, asks residency for weights, executes batches, answers.

Everything here runs on the device thread alone and knows no other thread; `engine` brings calls and actions to it.

Invariants: a model is a candidate of the scheduler only while calls wait for it and residency is not loading it
(`Served.loading_since` is None); a lease is taken in the turn in which `want` answered READY, and given back after the
host saw every output of the execution.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import jax

from ballast_worker.bundle.dimensions import program_name
from ballast_worker.device.gate import UploadGate
from ballast_worker.device.memory import Lease
from ballast_worker.residency.demand import Readiness, Refusal
from ballast_worker.residency.protocol import Residency
from ballast_worker.serving import refusals
from ballast_worker.serving.accounts import Accounts
from ballast_worker.serving.assembly import assemble, cut
from ballast_worker.serving.call import Call, Outcome
from ballast_worker.serving.executable import device_works, to_host
from ballast_worker.serving.journal import Journal
from ballast_worker.serving.queues import Batch, Waiting
from ballast_worker.serving.scheduler import Scheduler
from ballast_worker.serving.served import Served, Version

_log = logging.getLogger(__name__)

_GATED_BYTES = 16 << 10
"""Inputs up to this size pass a load without delay and need no gate."""


@dataclass(slots=True, eq=False)
class _Execution:
    """An execution under way."""

    model: str
    version: Version
    batch: Batch
    lease: Lease
    outputs: list[jax.Array]
    started: float


class Dispatcher:
    """The state of the device thread; implements residency's `Demand` and `Listener`."""

    def __init__(
        self,
        *,
        device: jax.Device,
        gate: UploadGate,
        max_queue: int,
        depth: int,
        journal: Journal,
        fatal: Callable[[str], None],
        accounts: Accounts,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._gate = gate
        self._max_queue = max_queue
        self._depth = depth
        self._journal = journal
        self._fatal = fatal
        self._accounts = accounts
        self._clock = clock
        self._residency: Residency
        self._scheduler = Scheduler()
        self._running: deque[_Execution] = deque()
        self._executing: Counter[str] = Counter()
        self._timers: list[tuple[float, str]] = []
        self._sequence = 0
        self._last_end = 0.0
        self.served: dict[str, Served] = {}
        """By name; other threads may look a name up."""

    def attach(self, residency: Residency) -> None:
        """Work with this residency from now on."""
        self._residency = residency

    # What the engine's loop calls.

    def step(self) -> bool:
        """Do one thing: start an execution, or wait for the end of the oldest one. False when there is nothing to do."""
        self._expire()
        if len(self._running) < self._depth and self._start():
            return True
        if self._running:
            self._finish(self._running.popleft())
            return True
        return False

    def wake_at(self) -> float | None:
        """When a deadline has to be looked at, if nothing happens before."""
        return self._timers[0][0] if self._timers else None

    @property
    def idle(self) -> bool:
        """Nothing executes and nothing waits."""
        return not self._running and not any(served.queue for served in self.served.values())

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse every waiting call, and see running executions to their end."""
        for name in list(self.served):
            self._refuse(name, refusal)
        while self._running:
            self._finish(self._running.popleft())

    def admit(self, call: Call, arrived: float) -> None:
        """Queue a call, or refuse it."""
        served = self.served.get(call.model)
        if served is None:
            answer(call, refusals.not_served(call.model))
            return
        now = self._clock()
        bucket = served.queue.table.bucket(call.dimensions) if served.current.accepts(call) else None
        if bucket is None:
            answer(call, refusals.replaced(call.model))
        elif call.deadline <= now:
            answer(call, refusals.deadline_exceeded(call.model, now - arrived))
        elif served.queue.full:
            answer(call, refusals.queue_full(call.model, self._max_queue))
        else:
            self._sequence += 1
            rows = served.queue.table.rows(call.dimensions)
            served.queue.put(Waiting(call, rows, arrived, bucket, self._sequence))
            self._set_timer(call.model, served)
            if call.model not in self._scheduler and served.loading_since is None:
                self._want(call.model, served)
            self._refuse_if_late(call.model, served, now)

    def install(self, version: Version) -> Refusal | None:
        """Serve a version under its name: at once, or as soon as residency has brought its weights beside the old ones."""
        resident = version.model.resident
        refusal = self._residency.register(resident)
        if refusal is not None:
            return refusal
        served = self.served.get(resident.name)
        if served is None:
            self.served[resident.name] = Served(version, version.queue(self._max_queue))
        elif served.current.digest == version.digest:
            served.pending = None
            self._switch(resident.name, served, version)
        else:
            served.pending = version
            self._follow(resident.name, served)
        return None

    def remove(self, name: str, done: Callable[[], None]) -> None:
        """Serve a name no longer; `done` follows when residency has let go of it."""
        if name in self.served:
            self._refuse(name, refusals.not_served(name))
            del self.served[name]
        self._residency.forget(name, done)

    # Demand

    def queued(self, model: str) -> int:
        """See `Demand.queued`."""
        served = self.served.get(model)
        return len(served.queue) if served is not None else 0

    def executing(self, model: str) -> bool:
        """See `Demand.executing`."""
        return self._executing[model] > 0

    def deadline(self, model: str) -> float | None:
        """See `Demand.deadline`."""
        served = self.served.get(model)
        return served.queue.deadline() if served is not None else None

    # Listener

    def loaded(self, model: str) -> None:
        """See `Listener.loaded`."""
        served = self.served.get(model)
        if served is None:
            return
        served.loading_since = None
        self._follow(model, served)
        if served.queue:
            self._scheduler.enter(model, served.queue)

    def refused(self, model: str, refusal: Refusal) -> None:
        """See `Listener.refused`."""
        served = self.served.get(model)
        if served is not None and served.loading_since is not None:  # else the version that serves is as it was
            self._refuse(model, refusal)

    def changed(self, model: str) -> None:
        """See `Listener.changed`."""
        served = self.served.get(model)
        if served is not None:
            self._follow(model, served)

    def _want(self, name: str, served: Served) -> bool:
        """Ask residency for the weights; whether a lease may be taken in this turn."""
        readiness = self._residency.want(name)
        if readiness is Readiness.READY:
            served.loading_since = None
            self._scheduler.enter(name, served.queue)
            return True
        self._scheduler.leave(name)
        if isinstance(readiness, Refusal):
            self._refuse(name, readiness)
        elif served.loading_since is None:
            served.loading_since = self._clock()
        return False

    def _refuse(self, name: str, refusal: Refusal) -> None:
        served = self.served.get(name)
        if served is None:
            return
        served.loading_since = None
        self._scheduler.leave(name)
        for waiting in served.queue.clear():
            answer(waiting.call, refusal)

    def _refuse_if_late(self, name: str, served: Served, now: float) -> None:
        """Refuse the calls that the weights will not reach in time, judged by the last load."""
        if served.loading_since is None or (seconds := self._residency.expected_load_seconds(name)) is None:
            return
        expected = max(0.0, served.loading_since + seconds - now)
        for waiting in served.queue.expire(now + expected):
            answer(waiting.call, refusals.loading(name, expected, waiting.call.deadline - now))

    def _follow(self, name: str, served: Served) -> None:
        """Execute with the programs of the bundle whose bytes a lease gives."""
        if served.pending is None:
            return
        bundle = self._residency.serving(name)
        if bundle is not None and bundle.digest == served.pending.digest:
            self._switch(name, served, served.pending)
            served.pending = None

    def _switch(self, name: str, served: Served, version: Version) -> None:
        waiting = served.queue.clear()
        candidate = name in self._scheduler
        self._scheduler.leave(name)
        served.current = version
        served.queue = version.queue(self._max_queue)
        for one in waiting:
            bucket = served.queue.table.bucket(one.call.dimensions) if version.accepts(one.call) else None
            if bucket is None:
                answer(one.call, refusals.replaced(name))
            else:
                served.queue.put(Waiting(one.call, one.rows, one.arrived, bucket, one.sequence))
        self._set_timer(name, served)
        if candidate and served.queue:
            self._scheduler.enter(name, served.queue)

    def _set_timer(self, name: str, served: Served) -> None:
        deadline = served.queue.deadline()
        timer = served.queue.timer
        if deadline is not None and (timer is None or deadline < timer):
            served.queue.timer = deadline
            heapq.heappush(self._timers, (deadline, name))

    def _expire(self) -> None:
        while self._timers and self._timers[0][0] <= (now := self._clock()):
            deadline, name = heapq.heappop(self._timers)
            served = self.served.get(name)
            if served is None or served.queue.timer != deadline:
                continue  # of a queue that is gone, or one that has set an earlier timer
            served.queue.timer = None
            for waiting in served.queue.expire(now):
                answer(waiting.call, refusals.deadline_exceeded(name, now - waiting.arrived))
            if not served.queue:
                self._scheduler.leave(name)
            self._set_timer(name, served)

    def _start(self) -> bool:
        """Enqueue the next batch, if there is one."""
        while (name := self._scheduler.next(self._clock(), busy=bool(self._running))) is not None:
            served = self.served[name]
            if not self._want(name, served):
                continue
            self._follow(name, served)
            if name not in self._scheduler:
                continue  # the calls did not fit the version that has just replaced theirs
            self._enqueue(name, served.current, self._scheduler.take(name))
            return True
        return False

    def _enqueue(self, name: str, version: Version, batch: Batch) -> None:
        calls = [waiting.call for waiting in batch.members]
        program = version.programs[batch.program.dimensions]
        lease = self._residency.lease(name)
        self._executing[name] += 1
        execution = _Execution(name, version, batch, lease, [], self._clock())
        self._journal.begin(name, batch.program.dimensions)
        try:
            inputs = assemble(calls, program.shapes, batched=version.batched)
            gated = sum(array.nbytes for array in inputs) > _GATED_BYTES
            with self._gate.uploading() if gated else nullcontext():
                uploaded = program.upload(inputs)
                execution.started = self._clock()
                execution.outputs = program.enqueue(lease.arrays, uploaded)
                if gated:
                    # Some runtimes enqueue a large copy from a thread of their own: only its end proves that it was.
                    for array in uploaded:
                        array.block_until_ready()
        except Exception as error:  # noqa: BLE001 - the runtime raises what it likes; these calls fail, the worker serves on
            self._failed(execution, error)
            return
        self._running.append(execution)

    def _finish(self, execution: _Execution) -> None:
        batch = execution.batch
        try:
            if execution.outputs:
                execution.outputs[0].block_until_ready()
            ended = self._clock()
            outputs = to_host(execution.outputs)
            answers = cut(
                outputs,
                execution.version.output_axes,
                [waiting.call for waiting in batch.members],
                batched=execution.version.batched,
            )
        except Exception as error:  # noqa: BLE001 - as in _enqueue
            self._failed(execution, error)
            return
        # With several enqueued, one begins when the one before it has ended.
        seconds = ended - max(execution.started, self._last_end)
        self._last_end = ended
        self._account(execution, seconds)
        self._ended(execution)
        for waiting, own in zip(batch.members, answers, strict=True):
            answer(waiting.call, own)

    def _account(self, execution: _Execution, seconds: float) -> None:
        batch = execution.batch
        served = self.served.get(execution.model)
        if served is not None:
            served.queue.virtual += seconds - batch.program.seconds
        batch.program.ran(seconds)
        waits = [execution.started - waiting.arrived for waiting in batch.members]
        self._accounts.dispatched(execution.model, rows=batch.rows, seconds=seconds, waits=waits)

    def _failed(self, execution: _Execution, error: Exception) -> None:
        program = program_name(dict(execution.batch.program.dimensions))
        _log.exception("executing model %s (%s) failed", execution.model, program, exc_info=error)
        if not device_works(self._device):
            # The journal still names the model, so that the next process knows.
            self._fatal(f"the device takes no more work after model '{execution.model}' ({program}): {error}")
        self._ended(execution)
        for waiting in execution.batch.members:
            answer(waiting.call, refusals.execution_failed(execution.model, program, error))

    def _ended(self, execution: _Execution) -> None:
        self._journal.end(execution.model, execution.batch.program.dimensions)
        execution.outputs.clear()
        execution.lease.release()
        self._executing[execution.model] -= 1
        if not self._executing[execution.model]:
            del self._executing[execution.model]
        self._residency.dispatched(execution.model)


def answer(call: Call, outcome: Outcome) -> None:
    """Give a call its outcome; whatever its `done` raises stays with it."""
    try:
        call.done(outcome)
    except Exception:  # noqa: BLE001 - a caller's fault must not end the device thread
        _log.exception("the answer of a request for model %s could not be given", call.model)
