# SPDX-License-Identifier: Apache-2.0
"""When a worker plans, with what, and when a new process should plan instead of this one. Owned by the control loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_worker.control import hostplan_text, planning
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.machine import Machine
from ballast_worker.control.models import Built, Failure, Stage
from ballast_worker.control.planning import Basis, DeviceLimits, Wanted
from ballast_worker.device import plan as lines
from ballast_worker.device.plan import Plan, PlanInputs
from ballast_worker.device.plan_text import render

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 30.0
"""What could not be reserved is tried again: somebody else may hold the memory still."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A plan to be carried out.

    Attributes:
        plan: it fits.
        host_bytes: budget of the host pool; None is unlimited.
    """

    plan: Plan
    host_bytes: int | None


class Planner:
    """Makes plans for what a line-up has built.

    Attributes:
        limits: what fits; they follow the plan in force.
        plan: in force, or refused; None before the first.
        host: the host memory plan beside it.
        node_workers: that divide a host budget which they do not share; 0 is not known.
    """

    def __init__(self, config: WorkerConfig, machine: Machine) -> None:
        self._machine = machine
        self.limits = DeviceLimits(Basis(config, machine.most(), machine.context, machine.overhead(0)))
        self.plan: Plan | None = None
        self.host: HostPlan | None = None
        self.node_workers = 0
        self._inputs: PlanInputs | None = None
        self._made: Plan | None = None  # before anything was observed
        self._again_at: float | None = None
        self._broken: Failure | None = None  # what planning itself failed of last

    def look(self) -> None:
        """See what the budget is now: once the machine is settled, and as long as nothing is reserved."""
        self.limits.basis = replace(self.limits.basis, budget=self._machine.look())

    def consider(self, lineup: Lineup, now: float) -> Accepted | Failure | None:
        """A plan for what is built, or why there is none; None when nothing has changed since the last.

        What fails on the way is said once, and tried again each time.
        """
        try:
            found = self._consider(lineup, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be told, and must not end the loop
            self._inputs = self.limits.plan = None
            failure = self._machine.failure(error)
            if failure == self._broken:
                return None
            self._broken = failure
            _log.exception("planning failed")
            return failure
        self._broken = None
        return found

    def _consider(self, lineup: Lineup, now: float) -> Accepted | Failure | None:
        again = self._again_at is not None and now >= self._again_at
        if again or self._inputs is None:
            self.look()
        built = lineup.built()
        weights = sum(one.bundle.layout.nbytes for one in built.values())
        overhead = self._machine.overhead(self._machine.locked_bytes(weights, workers=self.node_workers))
        basis = self.limits.basis = replace(self.limits.basis, overhead=overhead)
        inputs = basis.inputs(_wanted(lineup, built))
        lacking = self.plan is not None and self.plan.lacking
        if inputs == self._inputs and (lacking or not again):
            if again:
                self._again_at = now + _AGAIN_SECONDS
            return None
        self._inputs, self._again_at = inputs, None
        self.plan = self._made = plan = basis.plan(inputs)
        _tell(plan)
        self.host = host = self._machine.host_plan(weights, plan, workers=self.node_workers)
        _tell_host(host)
        if not plan.fits:
            if plan.lacking:
                self._again_at = now + _AGAIN_SECONDS
            return planning.refusal(plan)
        if not host.fits:
            self._again_at = now + _AGAIN_SECONDS
            return hostplan_text.refusal(host)
        self.limits.plan = plan
        return Accepted(plan, host.budget)

    def observe(self, lineup: Lineup) -> None:
        """Everything is reserved and has run: what the driver counts beyond it is known now, where it can be told."""
        used = self._machine.process_bytes(now_exactly=True)
        if used is None or self.plan is None:
            return
        code = sum(one.code_bytes for one in lineup.built().values())
        before, self.plan = self.plan, lines.observed(self.plan, used=used, code=code)
        self.limits.plan = self.plan
        _tell(self.plan, known=before.warnings)

    def failed(self, now: float) -> None:
        """The plan could not be carried out; it is considered again later."""
        self.limits.plan = None
        self._again_at = now + _AGAIN_SECONDS

    def outgrown(self, lineup: Lineup) -> bool:
        """Whether nothing is served and another plan would hold what the one in force refuses.

        A worker that started before it had models planned for none; what it reserved for scratch and code stays as it is
        for the life of the process.
        """
        views = lineup.views
        refused = any(view.built is not None and view.stage is Stage.REFUSED for view in views.values())
        if not refused or not lineup.settled or any(view.serving is not None for view in views.values()):
            return False
        built = {name: view.built for name, view in views.items() if view.built is not None}
        basis = self.limits.basis
        plan = basis.plan(basis.inputs(_wanted(lineup, built)))
        if plan == self._made or not plan.fits:
            return False
        limits = replace(self.limits, plan=plan)
        return all(
            limits.check_built(mine, one, [other for name, other in built.items() if name != mine]) is None
            for mine, one in built.items()
        )


def _wanted(lineup: Lineup, built: Mapping[str, Built]) -> dict[str, Wanted]:
    return planning.wanted(built, {name: view.spec.residency for name, view in lineup.views.items()})


def _tell(plan: Plan, *, known: Sequence[str] = ()) -> None:
    lines = {line.name: line.nbytes for line in plan.lines}
    event = {"event": "device.plan", "budget": plan.budget, "lines": lines, "fits": plan.fits}
    _log.info("device memory plan", extra={**event, "table": render(plan)})
    for warning in plan.warnings:
        if warning not in known:
            _log.warning("%s", warning)


def _tell_host(plan: HostPlan) -> None:
    lines = {line.name: line.nbytes for line in plan.lines}
    event = {"event": "host.plan", "limit": plan.limit, "lines": lines, "fits": plan.fits}
    _log.info("host memory plan", extra={**event, "table": hostplan_text.render(plan)})
    for warning in plan.warnings:
        _log.warning("%s", warning)
