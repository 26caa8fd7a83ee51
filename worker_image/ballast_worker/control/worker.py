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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError, AssignmentFile
from ballast_worker.control.catalog import WorkerCatalog
from ballast_worker.control.chores import Chores
from ballast_worker.control.desk import Desk
from ballast_worker.control.draining import END_SECONDS, LINGER_SECONDS, Draining
from ballast_worker.control.feed import Feed
from ballast_worker.control.journal import CulpritJournal
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.lookout import SCAN_SECONDS, Lookout
from ballast_worker.control.machine import Machine, pool_directory
from ballast_worker.control.models import Failure, ModelView
from ballast_worker.control.parts import Parts
from ballast_worker.control.planner import Accepted, Planner
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.report import Condition, Phase, WorkerView, worker_state
from ballast_worker.control.settings import named
from ballast_worker.control.standalone import Folder
from ballast_worker.control.watchdog import Watchdog
from ballast_worker.device.plan import Plan

_log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
"""Exit code of a worker that could not begin."""

EXIT_REFUSED: Final = 3
"""Exit code of a worker without an operator whose plan does not fit."""

EXIT_PLAN_ANEW: Final = 75
"""Exit code of a loop that wants to be started again at once, in the same process."""

_TICK_SECONDS: Final = 0.5


class Worker:
    """See the module.

    Args:
        config: checked.
        machine: the device and what is on it.
        workshop: builds.
        scan_seconds: between two looks at the folder, where no operator assigns the models.
        linger_seconds: for which calls are passed on at least after all models have moved.
        clock: monotonic seconds.

    Raises:
        SettingError: the state directory cannot be written.
    """

    def __init__(
        self,
        config: WorkerConfig,
        machine: Machine,
        workshop: Workshop,
        *,
        scan_seconds: float = SCAN_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._machine, self._workshop, self._clock = config, machine, workshop, clock
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        state = config.state_directory.expanduser()
        with named("stateDirectory", config.state_directory):
            self._journal = CulpritJournal(state / "journal")
        self._quarantine = Quarantine(state)
        self._planner = Planner(config, machine)
        self._watchdog = Watchdog(clock)
        self._catalog = WorkerCatalog(config.name)
        self._lineup = Lineup(
            config=config,
            workshop=workshop,
            quarantine=self._quarantine,
            limits=self._planner.limits,
            post=self._inbox.put,
            changed=self._model_changed,
            clock=clock,
        )
        self._condition = Condition(message=self._unassigned)
        self._generation: int | None = None
        self._parts: Parts | None = None
        self.desk = Desk(
            managed=config.managed,
            file=AssignmentFile(state),
            lineup=self._lineup,
            limits=self._planner.limits,
            post=self._inbox.put,
            view=self.view,
            parts=lambda: self._parts,
            accept=self._accept,
            release=self._release,
        )
        self.feed = Feed(lambda: worker_state(self.view()), lambda: self.desk.epoch)
        self._lookout = None if config.managed else Lookout(Folder(config), scan_seconds=scan_seconds)
        self._reserver = ThreadPoolExecutor(1, thread_name_prefix="reserve")
        self._reservation: Future[Parts] | None = None
        self._assigned = False
        self._look_at = 0.0
        self._chores = Chores(config, self._lineup, workshop)
        grace = config.serving.grace_seconds if config.managed else 0.0
        self._draining = Draining(max(0.0, grace - END_SECONDS), linger_seconds=linger_seconds, clock=clock)
        self._ended: int | None = None
        self._ending = threading.Event()
        self.ready = threading.Event()
        """Set when the plan is accepted and calls are taken."""

    @property
    def parts(self) -> Parts | None:
        """What serves, once it does. Any thread."""
        return self._parts

    @property
    def plan(self) -> Plan | None:
        """The plan in force, or the one that was refused. Any thread."""
        return self._planner.plan

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
            plan=self._planner.plan,
            host_plan=self._planner.host,
            driver_used=self._machine.process_bytes() if parts else None,
            residency=parts.residency.snapshot() if parts else None,
            loads=parts.engine.loads() if parts else None,
            memory=parts.memory.statistics() if parts else None,
            host=parts.store.statistics() if parts else None,
        )

    def fault(self) -> str | None:
        """Why this process is beyond help and should be restarted, or None. Any thread."""
        return self._watchdog.fault()

    def terminate(self) -> None:
        """End in order. Any thread, also from a signal handler."""
        self._inbox.put(self._begin_drain)

    def run(self) -> int:
        """Live until the end; returns the exit code."""
        self.feed.start()
        self._begin()
        while self._ended is None:
            for step in (self._take_event, self._end_in_time, self._turn):
                try:
                    if self._ended is None:
                        step()
                except Exception:  # noqa: BLE001 - one event's fault must not end what serves, or keep it from ending
                    _log.exception("an event of the control loop failed")
            self._watchdog.turned(self._parts.engine if self._parts is not None else None)
        return self._ended

    def _take_event(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=_TICK_SECONDS)()

    def _end_in_time(self) -> None:
        if self._draining.over(self._deserted):
            self._finish()

    def _begin(self) -> None:
        """Begin with what an operator has assigned last, or with the models of the folder once it has answered."""
        if self._lookout is None:
            self._begin_with(self.desk.assignment.models)
            return
        self._set_condition(Phase.STARTING, message="looking for models")
        self._lookout.first().add_done_callback(lambda found: self._inbox.put(partial(self._found, found)))

    def _found(self, found: Future[tuple[AssignedModel, ...]]) -> None:
        try:
            self._begin_with(found.result())
        except AssignmentError as error:
            self._refuse(Failure(Reason.INVALID_SPEC, str(error)))
        except Exception:
            self._close(EXIT_FAILED)  # nothing serves yet, and without a beginning nothing ever will
            raise

    def _begin_with(self, models: Sequence[AssignedModel]) -> None:
        """What ran when processes died is not run again. Then wait for the device memory of a process that has just
        ended, if there is one, and meet.
        """
        # Before anything is waited for: a process that ends meanwhile has told, and no later spec is blamed.
        for name, suspect in self._quarantine.blame(self._journal.culprits, models).items():
            what = "for the second time: it is quarantined" if suspect.quarantined else "which may be its fault"
            _log.error("model %s ran when the last process died, %s", name, what, extra={"model": name})
        meet = partial(self._meet, models)
        if self._machine.fault is not None:
            self._refuse(self._machine.fault)
        elif self._machine.settled:
            meet()
        else:
            settling = self._reserver.submit(
                self._machine.settle,
                pause=self._ending.wait,
                say=lambda text: self._inbox.put(partial(self._set_condition, Phase.STARTING, message=text)),
            )
            settling.add_done_callback(lambda _: self._inbox.put(meet))

    @property
    def _unassigned(self) -> str:
        """What is waited for before there are models."""
        return "waiting for the first assignment" if self._config.managed else ""

    def _meet(self, found: Sequence[AssignedModel]) -> None:
        """Begin with the models that were found at the start, or with what an operator has assigned last."""
        self._planner.look()
        self._set_condition(Phase.STARTING, message=self._unassigned)
        assignment = self.desk.assignment
        if self._lookout is not None:
            self._accept(Assignment(models=tuple(found)), {})
        elif assignment.generation is not None:
            self._accept(assignment, {})

    def _accept(self, assignment: Assignment, inspected: Mapping[AssignedModel, Bundle | Failure]) -> None:
        """An assignment to be carried out from now on."""
        self._generation = assignment.generation
        self._catalog.route(assignment.routes)
        self._planner.node_workers = assignment.node_workers
        self.feed.touch()
        if self._machine.fault is not None or not self._machine.settled:
            return  # the desk keeps it until this worker meets
        self._assigned = True
        self._lineup.apply(assignment.models, inspected)

    def _turn(self) -> None:
        """After every event, and twice a second."""
        now, parts = self._clock(), self._parts
        self._lineup.tick()
        if parts is None:
            self._consider(now)
        elif not self.ready.is_set():
            if self._lineup.handed_over:
                self._become_ready(parts)
        elif self._condition.phase is Phase.READY:
            self._chores.do(parts, now)
            if self._rested(now):
                self._set_condition(Phase.READY, self._host_trouble(parts))
                self._look_around(now)

    def _rested(self, now: float) -> bool:
        """Whether to look at all models again: not at every event of one of them."""
        if now < self._look_at:
            return False
        self._look_at = now + _TICK_SECONDS
        return True

    def _consider(self, now: float) -> None:
        """Make a plan when everything that it needs is known and it would be another one."""
        if self._reservation is not None or not self._assigned:
            return
        if not self._lineup.settled:
            if self._condition.phase is Phase.STARTING:
                done, all_ = self._lineup.progress
                self._set_condition(Phase.STARTING, message=f"{done} of {all_} models are prepared")
            return
        if self._condition.phase is Phase.REFUSED and not self._rested(now):
            return
        match self._planner.consider(self._lineup, now):
            case Failure() as failure:
                self._refuse(failure)
            case Accepted(plan) if not self._machine.can_reserve(plan):
                _log.info("XLA has taken a pool for a plan that failed, and this one wants another: starting again")
                self._finish(EXIT_PLAN_ANEW)
            case Accepted(plan, host_bytes):
                self._set_condition(Phase.STARTING, message="reserving memory and running each program once")
                self._reservation = self._reserver.submit(
                    self._machine.reserve,
                    plan,
                    host_bytes,
                    models=self._lineup.servable(),
                    catalog=self._catalog,
                    journal=self._journal,
                    changed=self.feed.touch,
                    load_refused=lambda name, refusal: self._inbox.put(
                        partial(self._lineup.load_refused, name, refusal)
                    ),
                )
                self._reservation.add_done_callback(lambda future: self._inbox.put(partial(self._reserved, future)))

    def _reserved(self, future: Future[Parts]) -> None:
        self._reservation = None
        error = future.exception()
        if error is not None:
            self._planner.failed(self._clock())
            self._refuse(self._machine.failure(error))
            return
        parts = self._parts = future.result()
        for model, refusal in parts.refused:
            self._lineup.refuse(model, Failure.of(refusal))
        self._lineup.serve_with(parts.engine)
        self._set_condition(Phase.STARTING, message="loading executables")

    def _become_ready(self, parts: Parts) -> None:
        """Every model of the start was handed over: take calls."""
        self._planner.observe(self._lineup)
        self._catalog.set_ready()
        self._set_condition(Phase.READY, self._host_trouble(parts))
        self.ready.set()
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

    def _host_trouble(self, parts: Parts) -> Failure | None:
        """Host copies that cannot be kept, or take too much: it serves on, and says so for as long as that is so."""
        views = self._lineup.views.values()
        bundles = ((view.bundle, view.serving.bundle if view.serving is not None else None) for view in views)
        found = parts.store.trouble(bundle for pair in bundles for bundle in pair if bundle is not None)
        return Failure(found.reason, found.message) if found is not None else None

    def _refuse(self, failure: Failure) -> None:
        """Say why not: stay up for the operator, or end."""
        self._set_condition(Phase.REFUSED, failure)
        _log.error(
            "%s: %s", failure.reason, failure.message, extra={"event": "worker.refused", "reason": failure.reason.value}
        )
        if not self._config.managed:
            self._close(EXIT_REFUSED)

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

    def _look_around(self, now: float) -> None:
        """Whether something else is to be served, or should be planned for."""
        if self._lookout is not None and (models := self._lookout.poll(now, self._lineup.assigned)) is not None:
            self._accept(Assignment(models=models), {})
        if self._planner.outgrown(self._lineup):
            _log.info("nothing is served yet, and a new plan would hold what this one refuses: starting again")
            self._finish(EXIT_PLAN_ANEW)

    def _begin_drain(self) -> None:
        if self._draining.begun or self._ended is not None:
            return
        self._draining.begin(serving=self.ready.is_set())
        _log.info("terminating", extra={"event": "worker.draining"})
        if self.ready.is_set():
            self._set_condition(Phase.DRAINING, message="admits calls until it is released")

    def _release(self) -> None:
        """The models of this worker have moved."""
        if not self._draining.begun:
            _log.warning("released without being terminated: it serves on")
        elif self._draining.release() and self._parts is not None:
            self._parts.frontend.retire()

    def _deserted(self) -> bool:
        return self._parts is not None and self._parts.frontend.deserted()

    def _finish(self, code: int = 0) -> None:
        """Stop admitting, answer what is under way, end."""
        self._catalog.release()
        self._lineup.withdraw()
        self._close(code)

    def _close(self, code: int) -> None:
        self._ended = code  # first: what fails below must not keep the process from ending
        self._ending.set()
        self._workshop.close()
        if self._reservation is not None and self._reservation.exception() is None:
            self._parts = self._reservation.result()
        if self._parts is not None:
            self._parts.stop(grace_seconds=min(END_SECONDS, self._config.serving.grace_seconds) * 2 / 3)
        self.desk.close()
        self._reserver.shutdown()
        self._lineup.close()
        if self._lookout is not None:
            self._lookout.close()
        self._journal.close()
        self.feed.publish()
        self.feed.close()
