# SPDX-License-Identifier: Apache-2.0
"""The plan in words: one aligned table, and one sentence for a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_contract.quantities import human
from ballast_worker.device.plan import Plan


def render(plan: Plan) -> str:
    """The plan as one aligned table, with what is wrong below it."""
    rows = [("LINE", "SIZE", "BYTES", "MINIMUM", "SOURCE", "SETTING")]
    rows += [
        (line.name, human(line.nbytes), str(line.nbytes), str(line.minimum), line.source, line.knob or "-")
        for line in plan.lines
    ]
    total = sum(line.nbytes for line in plan.lines)
    rows.append(("total", human(total), str(total), str(plan.minimum), "the lines above", "-"))
    rows.append(("budget", human(plan.budget), str(plan.budget), "-", plan.budget_source, "device.budget"))
    text = align(rows)
    notes = [f"warning: {warning}" for warning in plan.warnings]
    if plan.shortfall:
        notes.append(refusal(plan) if not plan.fits else _cures(plan))
    return "\n".join([*text, *notes])


def refusal(plan: Plan) -> str:
    """What the plan needs, what there is, the shortfall in bytes and every setting that alone would cure it."""
    lacking = f" ({plan.lacking})" if plan.lacking else ""
    return (
        f"the device memory plan does not fit: it needs {plan.minimum} bytes ({human(plan.minimum)}), the budget is "
        f"{plan.budget} bytes ({human(plan.budget)}, {plan.budget_source}), {plan.shortfall} bytes are missing{lacking}. "
        + _cures(plan)
    )


def _cures(plan: Plan) -> str:
    if not plan.knobs:
        return "No single setting makes it fit: serve fewer models here, or use a larger device."
    settings = "; ".join(f"{knob.key}={knob.value} (now {knob.current})" for knob in plan.knobs)
    return f"Any one of these makes it fit: {settings}."


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of a plan in columns: sizes, bytes and minimum to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = {1, 2, 3}
    return [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
