# SPDX-License-Identifier: Apache-2.0
"""The host memory plan in words: one aligned table, and one message for a refusal."""

from __future__ import annotations

from ballast_contract.quantities import human
from ballast_contract.reasons import Reason
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.control.models import Failure
from ballast_worker.device.plan_text import align


def render(plan: HostPlan) -> str:
    """The plan as one aligned table, with what it is checked against and what is wrong below it."""
    rows = [("HOST LINE", "SIZE", "BYTES", "MINIMUM", "SOURCE", "SETTING")]
    rows += [
        (line.name, human(line.nbytes), str(line.nbytes), str(line.minimum), line.source, line.knob or "-")
        for line in plan.lines
    ]
    total = sum(line.nbytes for line in plan.lines)
    rows.append(("total", human(total), str(total), str(plan.minimum), "the lines above", "-"))
    limit = ("none", "-") if plan.limit is None else (human(plan.limit), str(plan.limit))
    rows.append(("memory limit", *limit, "-", "of the container", plan.limit_setting))
    size = human(plan.mount_bytes), str(plan.mount_bytes), str(plan.asked)
    rows.append(("shared memory", *size, f"holds the host pool, at {plan.mount}", "-"))
    notes = [f"warning: {warning}" for warning in plan.warnings]
    if not plan.fits:
        notes.append(_refusal(plan))
    return "\n".join([*align(rows), *notes])


def refusal(plan: HostPlan) -> Failure:
    """A refused plan in one message: what is short of what, by how much, and each setting that alone would cure it."""
    reason = Reason.SHM_TOO_SMALL if plan.mount_lacks else Reason.INSUFFICIENT_HOST_MEMORY
    return Failure(reason, _refusal(plan))


def _refusal(plan: HostPlan) -> str:
    causes = []
    if plan.mount_lacks:
        causes.append(
            f"host.budget is {plan.asked} bytes and {plan.mount} has {plan.mount_bytes}, {plan.mount_lacks} bytes are missing"
        )
    if plan.limit_lacks:
        needs = ", ".join(f"{line.name} {line.minimum}" for line in plan.lines if line.minimum)
        causes.append(
            f"it needs {plan.minimum} bytes ({needs}) and the container's memory limit is {plan.limit} bytes, "
            f"{plan.limit_lacks} bytes are missing"
        )
    settings = "; ".join(f"{knob.key}={knob.value} (now {knob.current or 'unset'})" for knob in plan.knobs)
    cures = (
        f"Any one of these makes it fit: {settings}."
        if settings
        else "No single setting makes it fit: give it more memory, and lower host.budget."
    )
    return f"the host memory plan does not fit: {'; '.join(causes)}. {cures}"
