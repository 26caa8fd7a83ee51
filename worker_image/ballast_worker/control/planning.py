# SPDX-License-Identifier: Apache-2.0
"""From configuration and measured models to the device memory plan, and what the plan then allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ballast_contract.config import ResidencyWish, WorkerConfig
from ballast_contract.plan_lines import CODE, CONTEXT, PINNED, SCRATCH, SLACK
from ballast_contract.quantities import ceil_api, human
from ballast_contract.reasons import Reason
from ballast_worker.build.builder import CONTEXT_ALLOWANCE, TUNING_ALLOWANCE, BuiltProgram
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.models import Built, Failure
from ballast_worker.device import plan_text
from ballast_worker.device.bfc_replay import smallest_pool
from ballast_worker.device.budget import Budget
from ballast_worker.device.needs import Needs, ceil_div
from ballast_worker.device.plan import Declared, ModelNeed, Plan, PlanInputs, make_plan

DEPTH: Final = 1
"""Executions enqueued at once: what the XLA pool is sized for and what the engine keeps to."""

SCRATCH_AHEAD: Final = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Scratch that is planned although no model needs it yet, so that models assigned later fit: so much, or a sixteenth of
the budget where that is less, and only where everything else fits beside it."""

CODE_AHEAD: Final = {"cpu": 0, "cuda": 64 << 20}
"""The same for executables; on the CPU they are not device memory."""

_MOST_SLACK_PERCENT: Final = 50
"""Nobody is advised to keep more of a device free."""

POOL_MARGIN: Final = 128 << 20
"""XLA's pool has so much more than the replay of its allocator needs. A block that leaves so much is always split, so that a
run fits in whatever order it allocates, and weights beside it take no more than their bytes of one block."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to be planned for: what was built of it, and whether its weights stay on the device."""

    built: Built
    pinned: bool


@dataclass(frozen=True, slots=True)
class Basis:
    """What every plan of a worker starts from.

    Attributes:
        config: of the worker.
        budget: device memory of the whole process.
        context: driver context and libraries, in bytes, until a builder has measured them.
        overhead: what the arena's allocation takes besides, in bytes.
    """

    config: WorkerConfig
    budget: Budget
    context: int
    overhead: int

    def inputs(self, models: Mapping[str, Wanted]) -> PlanInputs:
        """What a plan for these models is made from."""
        device = self.config.device
        wanted = [model.built for model in models.values()]
        measured = max((built.context_bytes for built in wanted), default=0)
        return PlanInputs(
            budget=self.budget,
            context=measured or self.context,
            code=sum(built.code_bytes for built in wanted),
            scratch=self.scratch_need(wanted),
            models=tuple(
                ModelNeed(name, model.built.bundle.layout.nbytes, model.pinned, self.scratch_need([model.built]))
                for name, model in sorted(models.items())
            ),
            overhead=self.overhead,
            declared=tuple(_declared(models)),
            configured_scratch=device.scratch if isinstance(device.scratch, int) else None,
            max_percent=device.weights.max_percent,
            slack_percent=device.weights.slack_percent,
            oversubscription=device.oversubscription,
            reserved=self.config.backend != "cpu",
        )

    def scratch_need(self, models: Iterable[Built]) -> int:
        """Bytes of the pool from which executions take scratch, inputs and outputs, at the depth that is kept to: the
        smallest in which the replay of XLA's allocator runs every program, and a margin. Where XLA has no pool, they are
        counted.
        """
        programs = [(built, program) for built in models for program in built.programs]
        if not programs:
            return 0
        if self.config.backend == "cpu" and self.config.device.allocator == "arena":
            return DEPTH * max(program.scratch_bytes + program.io_bytes for _, program in programs)
        return max(_pool(built, program) for built, program in programs) + POOL_MARGIN

    @property
    def ahead(self) -> tuple[int, int]:
        """Bytes of scratch and of executables that are planned although no model is known to need them."""
        configured, backend = self.config.device.scratch, self.config.backend
        return configured if isinstance(configured, int) else SCRATCH_AHEAD[backend], CODE_AHEAD[backend]

    def plan(self, inputs: PlanInputs) -> Plan:
        """The plan, with room for models that come later where there is room."""
        scratch, code = (min(nbytes, self.budget.nbytes // 16) for nbytes in self.ahead)
        ahead = replace(inputs, code=max(inputs.code, code), scratch=max(inputs.scratch, scratch))
        plan = make_plan(ahead)
        return plan if plan.fits and not plan.shortfall else make_plan(inputs)


def _pool(built: Built, program: BuiltProgram) -> int:
    """The smallest pool that runs a program at the depth, whether XLA takes its scratch before its outputs or after them."""
    dimensions, manifest = dict(program.dimensions), built.bundle.manifest
    inputs = [port.concrete(dimensions).nbytes for port in manifest.inputs]
    outputs = [port.concrete(dimensions).nbytes for port in manifest.outputs]
    orders = ([*inputs, *outputs, program.scratch_bytes], [*inputs, program.scratch_bytes, *outputs])
    return max(smallest_pool(DEPTH * order) for order in orders)


def _declared(models: Mapping[str, Wanted]) -> Iterable[Declared]:
    for name, model in sorted(models.items()):
        for line in model.built.bundle.manifest.lines:
            unit, count = (line.bytes, 1) if line.bytes is not None else (line.unit or 0, line.count or 0)
            minimum = line.minimum if line.bytes is None else int(line.minimum > 0)
            yield Declared(f"{name}: {line.name}", unit, count, minimum, name)


def refusal(plan: Plan) -> Failure:
    """A refused plan in one message: the shortfall, and each setting with the value that would make it fit."""
    return Failure(Reason.PLAN_REFUSED, plan_text.refusal(plan))


@dataclass(slots=True)
class DeviceLimits:
    """Implements `lineup.Limits`. Written by the control loop, read by it and by builders' threads.

    Attributes:
        basis: of plans.
        plan: in force; None before.
    """

    basis: Basis
    plan: Plan | None = None

    def check_bytes(self, bundle: Bundle) -> Failure | None:
        """See `Limits.check_bytes`."""
        need = bundle.layout.nbytes
        room = (
            self.plan.arena
            if self.plan is not None
            else self.basis.budget.nbytes - self.basis.context - self.basis.overhead
        )
        if need <= room:
            return None
        scratch, code = self.basis.ahead
        return Failure(
            Reason.INSUFFICIENT_DEVICE_MEMORY,
            f"its weights take {need} bytes and {room} are there for weights on this worker: set device.budget to "
            f"{ceil_api(self._budget_for(need))}, which leaves {human(scratch)} for scratch and {human(code)} for executables, "
            "not known before it is built; or serve it from a larger device",
        )

    def _budget_for(self, weights: int) -> int:
        """Bytes of a budget that holds weights of this size beside what is planned."""
        basis, plan = self.basis, self.plan
        scratch, code = basis.ahead
        return Needs(
            fixed=code + (basis.context + basis.overhead if plan is None else plan.line(CONTEXT) + plan.line(CODE)),
            scratch=scratch if plan is None else max(scratch, plan.line(SCRATCH)),
            declared=0 if plan is None else plan.declared,
            pinned=0 if plan is None else plan.line(PINNED),
            largest=weights,
            max_percent=basis.config.device.weights.max_percent,
            slack_percent=basis.config.device.weights.slack_percent,
        ).minimum

    def check_built(
        self, name: str, built: Built, others: Iterable[Built], replaced: Built | None = None
    ) -> Failure | None:
        """See `Limits.check_built`. What is replaced leaves soon after: until then slack may hold it."""
        need = self.basis.scratch_need([built])
        configured = self.basis.config.device.scratch
        pool = self.plan.line(SCRATCH) if self.plan is not None else configured if isinstance(configured, int) else None
        if pool is not None and need > pool:
            return Failure(
                Reason.SCRATCH_EXCEEDS_POOL,
                f"its largest program takes {need} bytes of scratch, inputs and outputs; the plan has {pool} for them: "
                f"set device.scratch to at least {ceil_api(need)}, or build it with smaller batches",
            )
        if self.plan is None:
            return self._alone(name, built)
        if (failure := self._check_declared(name, built, self.plan)) is not None:
            return self._alone(name, built) or failure
        if self.basis.config.backend == "cpu":
            return None
        code, slack = self.plan.line(CODE), self.plan.line(SLACK)
        taken = sum(other.code_bytes for other in others)
        old = replaced.without(built).code_bytes if replaced is not None else 0
        if built.code_bytes + taken <= code and built.code_bytes + taken + old <= code + slack:
            return None
        own, kept = (f" and the {old} that serve until then", f" and keeps {slack} free") if old else ("", "")
        return Failure(
            Reason.INSUFFICIENT_DEVICE_MEMORY,
            f"its executables take {built.code_bytes} bytes beside the {taken} of others{own}; the plan has {code} for code"
            f"{kept}: restart the worker, which plans anew, or serve fewer models on it",
        )

    def _alone(self, name: str, built: Built) -> Failure | None:
        """Why a worker that serves nothing else could not serve this."""
        plan = make_plan(self.basis.inputs({name: Wanted(built, pinned=False)}))
        return None if plan.fits else replace(refusal(plan), reason=Reason.INSUFFICIENT_DEVICE_MEMORY)

    def _check_declared(self, name: str, built: Built, plan: Plan) -> Failure | None:
        """Lines of a bundle have their memory from the plan that was made with it: a later one has none to give."""
        planned = {line.name: line.nbytes for line in plan.lines}
        for line in _declared({name: Wanted(built, pinned=False)}):
            least = line.unit * line.minimum
            if planned.get(line.name, 0) < least:
                return Failure(
                    Reason.INSUFFICIENT_DEVICE_MEMORY,
                    f"it declares at least {least} bytes of device memory as '{line.name}', and the plan in force has "
                    f"{planned.get(line.name, 0)} for them: restart the worker, which plans anew",
                )
        return None

    def build_memory(self) -> int:
        """See `Limits.build_memory`: the slack once the rest is reserved."""
        if self.plan is None or self.basis.config.backend == "cpu":
            return self.basis.budget.nbytes
        return self.plan.line(SLACK)

    def starved(self, bundle: Bundle, failure: Failure) -> Failure:
        """See `Limits.starved`."""
        if self.plan is None or self.basis.config.backend == "cpu":
            return failure
        need = _builder_bytes(bundle)
        usable = self.plan.budget - self.plan.line(CONTEXT) - self.plan.line(CODE)
        percent, now = ceil_div(100 * need, max(1, usable)), self.basis.config.device.weights.slack_percent
        setting = (
            f"set device.weights.slackPercent to {percent} (now {now})"
            if now < percent <= _MOST_SLACK_PERCENT
            else f"set device.budget to {ceil_api(self.plan.budget + need)}"
        )
        return replace(
            failure,
            message=f"beside what this worker serves a builder may take the slack of {human(self.build_memory())}, and needs "
            f"about {human(need)}: {setting}, or replace the worker, which builds before it serves; {failure.message}",
        )


def _builder_bytes(bundle: Bundle) -> int:
    """Device memory with which a builder most likely manages: arguments of equal type share theirs."""
    specs = (placed.spec for placed in bundle.layout.tensors)
    weights = {(spec.dtype, spec.shape): spec.nbytes for spec in specs}
    manifest = bundle.manifest
    io = max(
        sum(port.concrete(program).nbytes for port in (*manifest.inputs, *manifest.outputs))
        for program in manifest.canonical_programs()
    )
    return CONTEXT_ALLOWANCE + TUNING_ALLOWANCE + 2 * (sum(weights.values()) + io)


def wanted(built: Mapping[str, Built], wishes: Mapping[str, ResidencyWish]) -> dict[str, Wanted]:
    """Built models with their users' wishes."""
    return {name: Wanted(found, wishes[name] is ResidencyWish.DEVICE) for name, found in built.items()}
