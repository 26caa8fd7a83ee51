# SPDX-License-Identifier: Apache-2.0
"""A worker's life: meet, build, plan, refuse or serve, drain.

One loop owns the state. It starts in STARTING; an accepted plan leads to READY, a refused one to REFUSED, from which a
new assignment or a change of memory leads out again; a terminating worker is DRAINING until it is released or its time
is up. Whatever blocks runs on other threads and posts its end to the loop.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control import planning
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError, AssignmentFile
from ballast_worker.control.catalog import WorkerCatalog
from ballast_worker.control.desk import Desk
from ballast_worker.control.feed import Feed
from ballast_worker.control.journal import CulpritJournal
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.machine import Machine, pool_directory
from ballast_worker.control.models import Built, Failure, ModelView, Stage
from ballast_worker.control.parts import Parts
from ballast_worker.control.planning import Basis, DeviceLimits
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.report import Condition, Phase, WorkerView, worker_state
from ballast_worker.control.standalone import Folder
from ballast_worker.device.plan import Plan, PlanInputs
from ballast_worker.device.plan_text import render
from ballast_worker.residency.protocol import CompactionMode

_log = logging.getLogger(__name__)

EXIT_REFUSED: Final = 3
"""Exit code of a worker without an operator whose plan does not fit."""

EXIT_PLAN_ANEW: Final = 75
"""Exit code of a loop that wants to be started again at once, in the same process."""

_TICK_SECONDS: Final = 0.5
_SCAN_SECONDS: Final = 2.0
_RESERVE_AGAIN_SECONDS: Final = 30.0
_LINGER_SECONDS: Final = 5.0
"""A released worker passes calls on for so long, because clients learn of the move late."""
_END_SECONDS: Final = 15.0
"""Before the end of the grace period, when admission stops whatever happened."""
_STALL_SECONDS: Final = 300.0
"""A device thread that has not taken anything up for so long hangs."""


class Worker:
    """See the module.

    Args:
        config: checked.
        machine: the device and what is on it.
        workshop: builds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: WorkerConfig,
        machine: Machine,
        workshop: Workshop,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._machine, self._workshop, self._clock = config, machine, workshop, clock
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        state = config.state_directory.expanduser()
        self._journal = CulpritJournal(state / "journal")
        self._quarantine = Quarantine(state)
        self._limits = DeviceLimits(Basis(config, machine.budget, machine.context, machine.overhead(0)))
        self._catalog = WorkerCatalog(config.name)
        self._lineup = Lineup(
            config=config,
            workshop=workshop,
            quarantine=self._quarantine,
            limits=self._limits,
            post=self._inbox.put,
            changed=self._model_changed,
            clock=clock,
        )
        self._condition = Condition(message="waiting for the first assignment" if config.managed else "")
        self._generation: int | None = None
        self._plan: Plan | None = None
        self._parts: Parts | None = None
        self.desk = Desk(
            managed=config.managed,
            file=AssignmentFile(state),
            lineup=self._lineup,
            limits=self._limits,
            post=self._inbox.put,
            view=self.view,
            parts=lambda: self._parts,
            accept=self._accept,
            release=self._release,
        )
        self.feed = Feed(lambda: worker_state(self.view()), lambda: self.desk.epoch)
        self._folder = None if config.managed else Folder(config)
        self._reserver = ThreadPoolExecutor(1, thread_name_prefix="reserve")
        self._reservation: Future[Parts] | None = None
        self._planned: PlanInputs | None = None
        self._assigned = False
        self._next_scan = 0.0
        self._reserve_at: float | None = None
        self._fallback: Failure | None = None
        self._loads_at_compaction = 0
        self._drain_until: float | None = None
        self._ended: int | None = None
        self._last_turn = clock()
        self._probe_sent: float | None = None
        self.ready = threading.Event()
        """Set when the plan is accepted and calls are taken."""

    @property
    def parts(self) -> Parts | None:
        """What serves, once it does. Any thread."""
        return self._parts

    @property
    def plan(self) -> Plan | None:
        """The plan in force, or the one that was refused. Any thread."""
        return self._plan

    @property
    def condition(self) -> Condition:
        """Any thread."""
        return self._condition

    @property
    def pool_directory(self) -> Path:
        """Where the host pool is. Any thread."""
        return pool_directory(self._config)

    def view(self) -> WorkerView:
        """Everything at this moment. Any thread."""
        parts = self._parts
        return WorkerView(
            name=self._config.name,
            backend=self._config.backend,
            condition=self._condition,
            models=dict(self._lineup.views),
            device_kind=parts.device.device_kind if parts else "",
            generation=self._generation,
            plan=self._plan,
            driver_used=self._machine.process_bytes() if parts else None,
            residency=parts.residency.snapshot() if parts else None,
            loads=parts.engine.loads() if parts else None,
            memory=parts.memory.statistics() if parts else None,
            host=parts.store.statistics() if parts else None,
        )

    def fault(self) -> str | None:
        """Why this process is beyond help and should be restarted, or None. Any thread."""
        now = self._clock()
        if now - self._last_turn > _STALL_SECONDS:
            return f"the control loop stands still for {now - self._last_turn:.0f} s"
        sent = self._probe_sent
        if sent is not None and now - sent > _STALL_SECONDS:
            return f"the device thread stands still for {now - sent:.0f} s"
        return None

    def terminate(self) -> None:
        """End in order. Any thread, also from a signal handler."""
        self._inbox.put(self._begin_drain)

    def run(self) -> int:
        """Live until the end; returns the exit code."""
        self.feed.start()
        self._begin()
        while self._ended is None:
            try:
                with contextlib.suppress(queue.Empty):
                    self._inbox.get(timeout=_TICK_SECONDS)()
                self._turn()
            except Exception:  # noqa: BLE001 - one event's fault must not end what serves
                _log.exception("an event of the control loop failed")
            self._last_turn = self._clock()
        return self._ended

    def _begin(self) -> None:
        """Meet: what ran when the last process died, and what was assigned to it."""
        if self._machine.fault is not None:
            self._end_refused(self._machine.fault)
            return
        assignment = self.desk.assignment
        models = assignment.models
        if self._folder is not None:
            try:
                models = self._folder.scan()
            except AssignmentError as error:
                self._end_refused(Failure(Reason.INVALID_SPEC, str(error)))
                return
            assignment = Assignment(models=models)
        for name in self._quarantine.blame(self._journal.culprits, models):
            _log.error("model %s ran when the last process died: it is quarantined", name, extra={"model": name})
        if assignment.generation is not None or self._folder is not None:
            self._accept(assignment, {})

    def _accept(self, assignment: Assignment, inspected: Mapping[AssignedModel, Bundle | Failure]) -> None:
        """An assignment to be carried out from now on."""
        self._generation = assignment.generation
        self._catalog.route(assignment.routes)
        self.feed.touch()
        if self._machine.fault is not None:
            return
        self._assigned = True
        self._lineup.apply(assignment.models, inspected)

    def _turn(self) -> None:
        """After every event, and twice a second."""
        now = self._clock()
        self._lineup.tick()
        if self._parts is None:
            self._consider(now)
        else:
            self._probe(now)
            if not self.ready.is_set() and not any(view.stage is Stage.BUILT for view in self._lineup.views.values()):
                self._become_ready(self._parts)
            if self._condition.phase is Phase.READY:
                self._compact_by_interval()
                self._plan_anew()
        if self._folder is not None and now >= self._next_scan:
            self._scan(now)
        if self._drain_until is not None and now >= self._drain_until:
            self._finish()

    def _consider(self, now: float) -> None:
        """Make a plan when everything that it needs is known and it would be another one."""
        if self._reservation is not None or not self._assigned or self._ended is not None:
            return
        if not self._lineup.settled:
            views = list(self._lineup.views.values())
            done = sum(view.stage not in (Stage.PENDING, Stage.BUILDING) for view in views)
            if self._condition.phase is Phase.STARTING:
                self._set_condition(Phase.STARTING, message=f"{done} of {len(views)} models are prepared")
            return
        again = self._reserve_at is not None and now >= self._reserve_at
        weights = sum(built.bundle.layout.nbytes for built in self._lineup.built().values())
        host = self._machine.host_bytes(weights, 0)
        overhead = self._machine.overhead(host if isinstance(host, int) else 0)
        basis = self._limits.basis = replace(self._limits.basis, overhead=overhead)
        inputs = basis.inputs(self._wanted())
        if inputs == self._planned and not again:
            return
        self._planned, self._reserve_at = inputs, None
        self._plan = plan = basis.plan(inputs)
        self._tell(plan)
        if not plan.fits:
            self._end_refused(planning.refusal(plan))
            return
        host = self._machine.host_bytes(weights, plan.arena)
        if isinstance(host, Failure):
            self._reserve_at = now + _RESERVE_AGAIN_SECONDS
            self._end_refused(host)
            return
        self._limits.plan = plan
        self._set_condition(Phase.STARTING, message="reserving memory")
        self._reservation = self._reserver.submit(
            self._machine.reserve,
            plan,
            host,
            catalog=self._catalog,
            journal=self._journal,
            changed=self.feed.touch,
            on_fallback=lambda why: self._inbox.put(partial(self._fell_back, why)),
        )
        self._reservation.add_done_callback(lambda future: self._inbox.put(partial(self._reserved, future)))

    def _wanted(self) -> dict[str, planning.Wanted]:
        wishes = {name: view.spec.residency for name, view in self._lineup.views.items()}
        return planning.wanted(self._lineup.built(), wishes)

    def _reserved(self, future: Future[Parts]) -> None:
        self._reservation = None
        error = future.exception()
        if error is not None:
            self._limits.plan = None
            self._reserve_at = self._clock() + _RESERVE_AGAIN_SECONDS
            self._end_refused(self._machine.failure(error))
            return
        parts = self._parts = future.result()
        self._lineup.serve_with(parts.engine)
        self._set_condition(Phase.STARTING, message="loading executables")

    def _become_ready(self, parts: Parts) -> None:
        """Every model of the start was handed over: take calls, and load what fits beside the pinned ones."""
        self._catalog.set_ready()
        self._set_condition(Phase.READY, self._fallback)
        self.ready.set()
        parts.engine.post(parts.residency.fill_free)
        _log.info(
            "ready: HTTP on port %d, gRPC on port %d",
            parts.frontend.ports.http,
            parts.frontend.ports.grpc,
            extra={
                "event": "worker.ready",
                "http_port": parts.frontend.ports.http,
                "grpc_port": parts.frontend.ports.grpc,
            },
        )

    def _fell_back(self, why: str) -> None:
        """A host copy could not be kept: it serves on, slower, and says so."""
        _log.warning("%s", why, extra={"event": "host.fallback", "reason": Reason.SHM_FALLBACK.value})
        self._fallback = Failure(Reason.SHM_FALLBACK, why)
        if self._condition.phase is Phase.READY:
            self._set_condition(Phase.READY, self._fallback)

    def _end_refused(self, failure: Failure) -> None:
        """Say why not: stay up for the operator, or end."""
        self._set_condition(Phase.REFUSED, failure)
        _log.error(
            "%s: %s", failure.reason, failure.message, extra={"event": "worker.refused", "reason": failure.reason.value}
        )
        if not self._config.managed:
            self._close(EXIT_REFUSED)

    def _tell(self, plan: Plan) -> None:
        lines = {line.name: line.nbytes for line in plan.lines}
        _log.info(
            "device memory plan",
            extra={
                "event": "device.plan",
                "budget": plan.budget,
                "lines": lines,
                "fits": plan.fits,
                "table": render(plan),
            },
        )
        for warning in plan.warnings:
            _log.warning("%s", warning)

    def _model_changed(self, name: str, view: ModelView | None) -> None:
        if view is None:
            self._catalog.remove(name)
        else:
            self._catalog.update(view)
        self.feed.touch()

    def _set_condition(self, phase: Phase, failure: Failure | None = None, message: str = "") -> None:
        condition = Condition(phase, failure, message)
        if condition != self._condition:
            self._condition = condition
            self.feed.touch()

    def _scan(self, now: float) -> None:
        """Look whether the folder's bundles are others."""
        self._next_scan = now + _SCAN_SECONDS
        if self._folder is None or self._condition.phase is Phase.DRAINING:
            return
        try:
            models = self._folder.settled()
        except AssignmentError as error:
            _log.error("%s; the models stay as they are", error)
            return
        if models is not None and {m.name: m for m in models} != {n: v.spec for n, v in self._lineup.views.items()}:
            self._accept(Assignment(models=models), {})

    def _probe(self, now: float) -> None:
        """Ask the device thread for a sign of life."""
        if self._parts is not None and self._probe_sent is None:
            self._probe_sent = now

            def answered() -> None:
                self._probe_sent = None

            self._parts.engine.post(answered)

    def _compact_by_interval(self) -> None:
        interval, parts = self._config.compaction_interval, self._parts
        if not interval or self._config.managed or parts is None:
            return
        loads = parts.residency.snapshot().loads
        if loads - self._loads_at_compaction >= interval:
            self._loads_at_compaction = loads
            parts.engine.post(lambda: parts.residency.compact(CompactionMode.MOVE, (), lambda _: None))

    def _plan_anew(self) -> None:
        """End so that a new process plans, when nothing is served yet and that plan would hold what this one refuses.

        A worker that started before it had models planned for none; what it reserved for scratch and code stays as it is
        for the life of the process.
        """
        views = self._lineup.views
        refused = [v for v in views.values() if v.built is not None and v.stage is Stage.REFUSED]
        if not refused or not self._lineup.settled or any(view.serving is not None for view in views.values()):
            return
        built = {name: view.built for name, view in views.items() if view.built is not None}
        wanted = planning.wanted(built, {name: view.spec.residency for name, view in views.items()})
        plan = self._limits.basis.plan(self._limits.basis.inputs(wanted))
        alone = replace(self._limits, plan=plan)
        if plan == self._plan or not plan.fits:
            return
        if all(alone.check_built(one, others(built, name)) is None for name, one in built.items()):
            _log.info("nothing is served yet and a new plan would hold %d models: starting again", len(built))
            self._finish(EXIT_PLAN_ANEW)

    def _begin_drain(self) -> None:
        if self._drain_until is not None or self._ended is not None:
            return
        left = max(0.0, self._config.serving.grace_seconds - _END_SECONDS)
        self._drain_until = self._clock() + (left if self._config.managed and self.ready.is_set() else 0.0)
        _log.info("terminating", extra={"event": "worker.draining"})
        if self.ready.is_set():
            self._set_condition(Phase.DRAINING, message="admits calls until it is released")

    def _release(self) -> None:
        """The models of this worker have moved."""
        if self._drain_until is None:
            _log.warning("released without being terminated: it serves on")
            return
        self._drain_until = min(self._drain_until, self._clock() + _LINGER_SECONDS)

    def _finish(self, code: int = 0) -> None:
        """Stop admitting, answer what is under way, end."""
        self._catalog.release()
        self._lineup.withdraw()
        self._close(code)

    def _close(self, code: int) -> None:
        self._workshop.close()
        if self._reservation is not None and self._reservation.exception() is None:
            self._parts = self._reservation.result()
        if self._parts is not None:
            self._parts.stop(grace_seconds=min(_END_SECONDS, self._config.serving.grace_seconds) * 2 / 3)
        self._reserver.shutdown()
        self._lineup.close()
        self._journal.close()
        self.feed.publish()
        self.feed.close()
        self._ended = code


def others(built: Mapping[str, Built], name: str) -> list[Built]:
    """All but one."""
    return [one for other, one in built.items() if other != name]
