# SPDX-License-Identifier: Apache-2.0
"""The device memory of a simulated worker: what a WeightBudget wishes, and beside it what a worker of the pool has measured.

As in the plan that a worker makes, usable = budget - context - code. Weights take at most maxPercent of it; together with
scratch, and with what bundles declare, they leave slackPercent of it free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_contract import quantities
from ballast_contract.plan_lines import CODE, CONTEXT, OF_EVERY_PLAN, SCRATCH
from ballast_operator.api.common import ReportedSize, Status
from ballast_operator.api.weightbudget import Device
from ballast_operator.api.weightbudget_status import PlanLine
from ballast_operator.edge.simulation_input import InputError, size
from ballast_operator.edge.simulation_objects import Entry

_CONFIGURED: Final = "configured"
"""How the source of the scratch line begins where it is a size that was wished, and not what programs need."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Device memory that weights and code share on each worker: bytes, and in words where the figure comes from."""

    nbytes: int
    source: str


class _Observed(Status):
    """What the status says of the plan in force; nothing before a pool runs."""

    plan: tuple[PlanLine, ...] = ()
    shortfall: ReportedSize | None = None


def capacity(budget: Entry, device: Device) -> Capacity:
    """What the workers of a WeightBudget would have once its spec is applied.

    Of the plan in its status counts what the spec does not say: context, code, what bundles declare, scratch where it is
    auto, and the budget where that is no size. A plan that was observed may have a larger context than it was made with,
    which slack has paid: then this is a little less than the plan in force.

    Raises:
        InputError: it cannot be known, or there is none; the message says which option or field settles it.
    """
    observed = budget.read(_Observed, "status")
    lines = {line.line: size(line.bytes, f"{budget.where}: status.plan, {line.line}") for line in observed.plan}
    total, whence = _total(budget, device, observed, sum(lines.values()))
    scratch = _scratch(budget, device, observed, lines)
    code, slack, most = lines.get(CODE, 0), device.weights.slack_percent, device.weights.max_percent
    declared = sum(nbytes for name, nbytes in lines.items() if name not in OF_EVERY_PLAN)
    usable = max(0, total - lines.get(CONTEXT, 0) - code)
    weights = min(usable * most // 100, usable * (100 - slack) // 100 - scratch - declared)
    taken = {CONTEXT: lines.get(CONTEXT, 0), SCRATCH: scratch, "declared lines": declared}
    less = [f"{name} {quantities.human(nbytes)}" for name, nbytes in taken.items() if nbytes] + [f"slack {slack}%"]
    if weights <= 0:
        raise InputError(
            f"{budget.where}: {whence} leaves nothing for weights, with code {quantities.human(code)}, {', '.join(less)}: "
            "give it more, or lower spec.device.scratch or the slack"
        )
    known = (
        "what the spec does not say is from status.plan"
        if lines
        else "driver and programs are not known before the pool runs"
    )
    share = f", of which weights take {most}% at most" if most < 100 else ""
    return Capacity(code + weights, f"{whence} less {', '.join(less)}{share}; {known}")


def _total(budget: Entry, device: Device, observed: _Observed, planned: int) -> tuple[int, str]:
    """Bytes that the process of a worker may hold, and what they are."""
    wished = device.budget
    if wished is not None and not quantities.is_percent(wished):
        return size(wished, f"{budget.where}: spec.device.budget"), f"spec.device.budget {wished}"
    said = f"spec.device.budget is {wished or 'left out'}"
    if not planned:
        raise InputError(f"{budget.where}: {said}, which only a worker can turn into bytes: give --capacity")
    if observed.shortfall:
        raise InputError(
            f"{budget.where}: {said}, and the plan in status.plan does not fit, so that it does not tell the bytes: "
            "give --capacity, or write a size"
        )
    return planned, f"the {quantities.human(planned)} of status.plan ({said}; write a size to try another)"


def _scratch(budget: Entry, device: Device, observed: _Observed, lines: dict[str, int]) -> int:
    if device.scratch != "auto":
        return size(device.scratch, f"{budget.where}: spec.device.scratch")
    if any(line.line == SCRATCH and line.source.startswith(_CONFIGURED) for line in observed.plan):
        raise InputError(
            f"{budget.where}: spec.device.scratch is auto, and status.plan was made with a size, so that it does not tell "
            "what programs need: give --capacity, or write a size"
        )
    return lines.get(SCRATCH, 0)
