# SPDX-License-Identifier: Apache-2.0
"""Which setting, changed alone, makes a refused plan fit, and to which value. Pure.

Every value is the nearest to the present one that suffices, spelled as a person would type it: one step back towards the
present value does not suffice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ballast_contract import quantities
from ballast_worker.device.budget import Budget
from ballast_worker.device.needs import Needs, ceil_div


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and the value with which, alone, a refused plan would fit."""

    key: str
    value: str
    current: str


def suggest(
    needs: Needs, budget: Budget, *, pinned: Mapping[str, int], needed_scratch: int, scratch_setting: str
) -> tuple[Knob, ...]:
    """Every single setting that makes the plan fit; empty when no single one does.

    Args:
        needs: what does not fit.
        budget: into which.
        pinned: bytes of each pinned model, by name.
        needed_scratch: bytes of scratch below which some model would be refused.
        scratch_setting: device.scratch as it is set now.
    """
    return tuple(_all(needs, budget, pinned, needed_scratch, scratch_setting))


def _all(
    needs: Needs, budget: Budget, pinned: Mapping[str, int], needed_scratch: int, scratch_setting: str
) -> Iterator[Knob]:
    if (size := _budget(needs, budget)) is not None:
        yield Knob("device.budget", size, budget.setting)
    if budget.reserve is not None and budget.available is not None and budget.available >= needs.minimum:
        value = _floor(budget.available - needs.minimum)
        yield Knob("device.reserve", value, quantities.format_api(budget.reserve))
    if budget.available is not None and budget.nbytes > budget.available:
        return  # nothing but a smaller budget cures a budget that is not there
    usable = needs.usable(budget.nbytes)
    if usable and not needs.within_max(budget.nbytes) and needs.within_slack(budget.nbytes):
        percent = ceil_div(100 * needs.weights, usable)
        if percent <= 100:
            yield Knob("device.weights.maxPercent", str(percent), str(needs.max_percent))
    if usable and not needs.within_slack(budget.nbytes) and needs.within_max(budget.nbytes):
        percent = 100 - ceil_div(100 * needs.everything, usable)
        if percent >= 0:
            yield Knob("device.weights.slackPercent", str(percent), str(needs.slack_percent))
        room = usable * (100 - needs.slack_percent) // 100 - needs.weights - needs.declared
        value = _floor(max(0, room))
        if quantities.parse_api(value) >= max(1, needed_scratch):
            yield Knob("device.scratch", value, scratch_setting)
    for name, nbytes in sorted(pinned.items(), key=lambda item: (item[1], item[0])):
        changed = replace(needs, pinned=needs.pinned - nbytes, largest=max(needs.largest, nbytes))
        if changed.minimum <= budget.nbytes:
            yield Knob(f"residency of {name}", "unpinned", "device")
            break


def _budget(needs: Needs, budget: Budget) -> str | None:
    available = budget.available
    if available is not None and needs.minimum > available:
        return None
    if available is not None and budget.nbytes > available:
        value = _floor(available)
        return value if quantities.parse_api(value) >= needs.minimum else str(available)
    value = quantities.ceil_api(needs.minimum)
    return value if available is None or quantities.parse_api(value) <= available else str(needs.minimum)


def _floor(size: int) -> str:
    """Spell at most so many bytes, rounded down as `quantities.ceil_api` rounds up."""
    step, unit = (1 << 20, "Mi") if size >= 1 << 20 else (1 << 10, "Ki")
    return f"{size // step}{unit}"
