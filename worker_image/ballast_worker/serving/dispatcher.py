# SPDX-License-Identifier: Apache-2.0
"""What the device thread decides: which calls are admitted, which weights are asked for, which batch is next.

Everything here runs on the device thread alone and knows no other thread; `engine` brings calls and actions to it.

Invariants: a model is a candidate of the scheduler only while calls wait for it and residency is not loading it
(`Served.loading_since` is None); an execution starts in the turn in which `want` answered READY.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ballast_worker.residency.demand import Readiness, Refusal
from ballast_worker.residency.protocol import Residency
from ballast_worker.serving import refusals
from ballast_worker.serving.call import Call
from ballast_worker.serving.executions import Executions, answer
from ballast_worker.serving.queues import Waiting
from ballast_worker.serving.scheduler import Scheduler
from ballast_worker.serving.served import Served, Version


class Dispatcher:
    """The state of the device thread; implements residency's `Demand` and `Listener`."""

    def __init__(self, executions: Executions, *, max_queue: int, depth: int, clock: Callable[[], float]) -> None:
        self._executions = executions
        self._max_queue = max_queue
        self._depth = depth
        self._clock = clock
        self._residency: Residency
        self._scheduler = Scheduler()
        self._timers: list[tuple[float, str]] = []
        self._sequence = 0
        self.served: dict[str, Served] = {}
        """By name; other threads may look a name up."""

    def attach(self, residency: Residency) -> None:
        """Work with this residency from now on."""
        self._residency = residency

    # What the engine's loop calls.

    def step(self) -> bool:
        """Do one thing: start an execution, or wait for the end of the oldest one. False when there is nothing to do."""
        self._expire()
        if len(self._executions) < self._depth and self._start():
            return True
        if self._executions:
            self._finish()
            return True
        return False

    def wake_at(self) -> float | None:
        """When a deadline has to be looked at, if nothing happens before."""
        return self._timers[0][0] if self._timers else None

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse every waiting call, and see running executions to their end."""
        for name in list(self.served):
            self._refuse(name, refusal)
        while self._executions:
            self._finish()

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
        return self._executions.executing(model)

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
        while (name := self._scheduler.next(self._clock(), busy=bool(self._executions))) is not None:
            served = self.served[name]
            if not self._want(name, served):
                continue
            self._follow(name, served)
            if name not in self._scheduler:
                continue  # the calls did not fit the version that has just replaced theirs
            self._executions.start(name, served.current, self._scheduler.take(name), self._residency)
            return True
        return False

    def _finish(self) -> None:
        name, surprise = self._executions.finish()
        served = self.served.get(name)
        if served is not None:
            served.queue.virtual += surprise
