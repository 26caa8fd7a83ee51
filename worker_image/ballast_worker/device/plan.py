# SPDX-License-Identifier: Apache-2.0
"""The device memory plan: lines that account for every byte of the budget before anything is served. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from ballast_contract import quantities
from ballast_contract.plan_lines import CODE, CONTEXT, OF_EVERY_PLAN, ON_DEMAND, PINNED, SCRATCH, SLACK
from ballast_worker.device.budget import Budget
from ballast_worker.device.knobs import Knob, suggest
from ballast_worker.device.needs import Needs

_OBSERVED: Final = "driver, libraries and copy buffers, measured in this process"


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """What one model that is to be served needs of the device; bytes.

    Attributes:
        name: what clients call.
        weights: as packed.
        pinned: residency device.
        scratch: XLA pool that its largest program needs; 0 when not known yet.
    """

    name: str
    weights: int
    pinned: bool
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Declared:
    """A line that a generative bundle declares, such as its KV pool: whole units of memory.

    Attributes:
        name: of the line.
        unit: bytes of one unit.
        count: units wanted.
        minimum: units that it cannot do without.
        model: who declares it.
    """

    name: str
    unit: int
    count: int
    minimum: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything the plan is made from; bytes and whole percentages.

    Attributes:
        budget: from `budget.resolve`.
        context: driver context and libraries, measured; 0 on cpu.
        overhead: `Backend.overhead_bytes`, and 2 MiB per GiB of page-locked host memory.
        code: executables of every model, measured.
        scratch: the XLA pool that runs every program of every model, measured.
        models: every model to be served.
        declared: lines of generative bundles, in order.
        configured_scratch: `device.scratch`; None for auto.
        max_percent: `device.weights.maxPercent`.
        slack_percent: `device.weights.slackPercent`.
        oversubscription: `device.oversubscription`.
        reserved: the XLA pool is really taken, which it is not on cpu.
    """

    budget: Budget
    context: int
    code: int
    scratch: int
    models: tuple[ModelNeed, ...]
    overhead: int = 0
    declared: tuple[Declared, ...] = ()
    configured_scratch: int | None = None
    max_percent: int = 100
    slack_percent: int = 10
    oversubscription: Literal["refuse", "allow"] = "refuse"
    reserved: bool = True


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One line, in bytes: where they go, the least it works with, where the figure comes from, what changes it."""

    name: str
    nbytes: int
    minimum: int
    source: str
    knob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The lines, and whether the worker may start.

    The lines sum to the budget to the byte, with two exceptions: those of a refused plan are what the smallest budget that
    fits would give and sum to `minimum`; those of an allowed oversubscription sum to more when the budget cannot hold
    even the least of everything.

    Attributes:
        budget: bytes.
        budget_source: where that figure comes from.
        lacking: in words, why the device has less free than the budget; empty when it has enough.
        lines: in order.
        fits: the worker may start.
        minimum: the smallest budget that would fit, in bytes.
        shortfall: bytes; 0 unless the plan is refused or oversubscribed.
        knobs: single settings that cure the shortfall.
        warnings: sentences for people.
    """

    budget: int
    budget_source: str
    lines: tuple[PlanLine, ...]
    fits: bool
    minimum: int
    shortfall: int
    knobs: tuple[Knob, ...]
    warnings: tuple[str, ...]
    lacking: str = ""

    def line(self, name: str) -> int:
        """Bytes of a line."""
        return next(line.nbytes for line in self.lines if line.name == name)

    @property
    def declared(self) -> int:
        """Bytes of the lines that bundles declare."""
        return sum(line.nbytes for line in self.lines if line.name not in OF_EVERY_PLAN)

    @property
    def arena(self) -> int:
        """Bytes that the arena takes: pinned and on-demand weights."""
        return self.line(PINNED) + self.line(ON_DEMAND)


def make_plan(inputs: PlanInputs) -> Plan:
    """Account for every byte of the budget, or refuse and say what would help.

    usable = budget - context - code. Weights take at most maxPercent of it, and slackPercent of it stays free; what weights
    may take beyond the pinned ones is on-demand. The minimum holds the largest on-demand model beside everything else.
    """
    needs = _needs(inputs)
    budget = inputs.budget.nbytes
    within = budget if inputs.budget.available is None else min(budget, inputs.budget.available)
    shortfall = max(needs.minimum, budget) - within
    allowed = inputs.oversubscription == "allow"
    warnings = _scratch_warnings(inputs, needs)
    if shortfall and allowed:
        warnings += (
            f"oversubscription is allowed: the plan is {shortfall} bytes short, so that an allocation may fail later",
        )
    if shortfall and allowed and needs.minimum > budget:
        shares = _bare_shares(inputs, needs)
    else:
        shares = _shares(inputs, needs, max(budget, needs.minimum))
    return Plan(
        budget=budget,
        budget_source=inputs.budget.source,
        lines=_lines(inputs, needs, *shares),
        fits=allowed or not shortfall,
        minimum=needs.minimum,
        shortfall=shortfall,
        knobs=_knobs(inputs, needs) if shortfall else (),
        warnings=warnings,
        lacking=_lacking(inputs.budget) if within < budget else "",
    )


def _lacking(budget: Budget) -> str:
    return f"{budget.available} bytes of the device are free{f', {budget.held}' if budget.held else ''}"


def observed(plan: Plan, *, used: int, code: int) -> Plan:
    """The plan once all that it reserves is taken and every program has run: `context` is what the driver counts beyond
    that, and slack takes the difference.

    Args:
        plan: in force.
        used: bytes that the driver counts for this process.
        code: bytes of the executables that are loaded, a part of what is reserved for code.
    """
    context = max(0, used - plan.arena - plan.line(SCRATCH) - code)
    slack = plan.line(SLACK) + plan.line(CONTEXT) - context
    warnings = plan.warnings
    if slack < 0:
        warnings += (f"the process holds {-slack} bytes of device memory beyond its budget: raise device.budget",)
    lines = tuple(
        replace(line, nbytes=context, minimum=context, source=_OBSERVED)
        if line.name == CONTEXT
        else replace(line, nbytes=max(0, slack))
        if line.name == SLACK
        else line
        for line in plan.lines
    )
    return replace(plan, lines=lines, warnings=warnings)


def _needs(inputs: PlanInputs) -> Needs:
    return Needs(
        fixed=inputs.context + inputs.overhead + inputs.code,
        scratch=inputs.scratch if inputs.configured_scratch is None else inputs.configured_scratch,
        declared=sum(line.unit * line.minimum for line in inputs.declared),
        pinned=sum(model.weights for model in inputs.models if model.pinned),
        largest=max((model.weights for model in inputs.models if not model.pinned), default=0),
        max_percent=inputs.max_percent,
        slack_percent=inputs.slack_percent,
    )


def _shares(inputs: PlanInputs, needs: Needs, budget: int) -> tuple[tuple[int, ...], int, int]:
    """Bytes of the declared lines, of on-demand weights and of slack, for a budget that is large enough."""
    usable = needs.usable(budget)
    taken = usable * (100 - needs.slack_percent) // 100
    room = taken - needs.everything
    declared = []
    for line in inputs.declared:
        extra = min(line.count - line.minimum, room // line.unit) if line.unit else 0
        room -= extra * line.unit
        declared.append((line.minimum + extra) * line.unit)
    weights = min(usable * needs.max_percent // 100, taken - needs.scratch - sum(declared))
    slack = usable - needs.scratch - sum(declared) - weights
    return tuple(declared), weights - needs.pinned, slack


def _bare_shares(inputs: PlanInputs, needs: Needs) -> tuple[tuple[int, ...], int, int]:
    """The least of everything, and as slack what that leaves of the budget, if anything."""
    declared = tuple(line.unit * line.minimum for line in inputs.declared)
    return declared, needs.largest, max(0, needs.usable(inputs.budget.nbytes) - needs.everything)


def _lines(
    inputs: PlanInputs, needs: Needs, declared: tuple[int, ...], on_demand: int, slack: int
) -> tuple[PlanLine, ...]:
    context = needs.fixed - inputs.code
    pinned = sum(model.pinned for model in inputs.models)
    scratch_source = "measured" if inputs.configured_scratch is None else "configured"
    if not inputs.reserved:
        scratch_source += ", accounted but not reserved on cpu"
    least_slack = needs.minimum - needs.fixed - needs.everything
    return (
        PlanLine(CONTEXT, context, context, "driver and libraries, measured; copy buffers", ""),
        PlanLine(CODE, inputs.code, inputs.code, f"executables of {_count(len(inputs.models), 'model')}, measured", ""),
        PlanLine(SCRATCH, needs.scratch, needs.scratch, scratch_source, "device.scratch"),
        *(
            PlanLine(line.name, size, line.unit * line.minimum, f"declared by {line.model}, units of {line.unit}", "")
            for line, size in zip(inputs.declared, declared, strict=True)
        ),
        PlanLine(PINNED, needs.pinned, needs.pinned, _count(pinned, "pinned model"), "residency"),
        PlanLine(ON_DEMAND, on_demand, needs.largest, "the remainder", "device.weights.maxPercent"),
        PlanLine(SLACK, slack, least_slack, "kept free", "device.weights.slackPercent"),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _knobs(inputs: PlanInputs, needs: Needs) -> tuple[Knob, ...]:
    configured = inputs.configured_scratch
    return suggest(
        needs,
        inputs.budget,
        pinned={model.name: model.weights for model in inputs.models if model.pinned},
        needed_scratch=max((model.scratch for model in inputs.models), default=0),
        scratch_setting="auto" if configured is None else quantities.format_api(configured),
    )


def _scratch_warnings(inputs: PlanInputs, needs: Needs) -> tuple[str, ...]:
    return tuple(
        f"model '{model.name}' needs {model.scratch} bytes of scratch and device.scratch gives {needs.scratch}: "
        "it will be refused"
        for model in inputs.models
        if model.scratch > needs.scratch
    )
