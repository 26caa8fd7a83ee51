# SPDX-License-Identifier: Apache-2.0
"""The host memory plan: what a worker's host memory is for, checked against the file system of the host pool and against
the memory limit of the container before anything is served. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ballast_contract import quantities
from ballast_contract.config import Host
from ballast_worker.control import hostbudget
from ballast_worker.control.hostbudget import PROCESS_BYTES, HostFacts
from ballast_worker.device.knobs import Knob
from ballast_worker.device.plan import Plan, PlanLine
from ballast_worker.host.limits import MARGIN_BYTES

POOL: Final = "host pool"
RING: Final = "copy ring"
ARENA: Final = "arena"
PROCESS: Final = "process"
LEFT: Final = "left"

AT_READY: Final = {"cpu": 96 << 20, "cuda": 288 << 20}
"""What the process alone has taken when it is Ready, without file cache, which it would give up: measured, see
docs/design/0032."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInputs:
    """Everything the plan is made from.

    Attributes:
        config: `host`.
        facts: of the machine.
        backend: of the worker.
        managed: an operator sets the memory limit: it adds the budget to what its user sets.
        workers: that divide a budget which they do not share.
        useful: bytes beyond which copies cannot be used; None is not known.
        ring: bytes of the memory by way of which weights go that have no copy, or none that is page-locked.
        device: the device memory plan, whose arena is host memory on cpu; None leaves it out.
    """

    config: Host
    facts: HostFacts
    backend: Literal["cpu", "cuda"]
    managed: bool
    workers: int
    useful: int | None
    ring: int
    device: Plan | None

    @property
    def arena(self) -> int:
        """Bytes of host memory that the arena takes."""
        return self.device.arena if self.device is not None and self.backend == "cpu" else 0

    @property
    def least(self) -> int:
        """Bytes that the process cannot do without, besides the host pool. Where less than the margin is left, a worker
        takes no segment and ends its builders.
        """
        return self.ring + self.arena + AT_READY[self.backend] + MARGIN_BYTES

    @property
    def limit_setting(self) -> str:
        """What sets the memory limit."""
        return "workers.resources.limits.memory" if self.managed else "the container's memory limit"

    @property
    def share(self) -> int:
        """By how much the budget is divided."""
        return self.workers if self.config.sharing == "none" else 1

    @property
    def asked(self) -> int:
        """The budget in bytes as it is configured, for all who divide it; 0 unless it is a size, which alone has to be had."""
        return self.config.budget if isinstance(self.config.budget, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The lines, and whether the worker may start.

    The lines of a plan that fits sum to the memory limit, if there is one, to the byte; those of a plan that exceeds it are
    the least that the worker needs, and sum to `minimum`.

    Attributes:
        budget: of the host pool in bytes; None is unlimited.
        asked: bytes that the mount has to have.
        mount: where the file system of the pool is mounted.
        mount_bytes: its size.
        limit: the tightest memory limit of the container in bytes; None without one.
        limit_setting: what sets it.
        lines: in order.
        minimum: the smallest memory limit that would do, in bytes.
        shortfall: bytes that the mount or the limit lacks, whichever lacks more; 0 when the plan fits.
        knobs: single settings that cure it.
        warnings: sentences for people.
    """

    budget: int | None
    asked: int
    mount: Path
    mount_bytes: int
    limit: int | None
    limit_setting: str
    lines: tuple[PlanLine, ...]
    minimum: int
    shortfall: int
    knobs: tuple[Knob, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """The worker may start."""
        return not self.shortfall

    @property
    def mount_lacks(self) -> int:
        """Bytes by which the mount is smaller than the budget."""
        return max(0, self.asked - self.mount_bytes)

    @property
    def limit_lacks(self) -> int:
        """Bytes by which the memory limit is smaller than the least that is needed."""
        return 0 if self.limit is None else max(0, self.minimum - self.limit)


def make_host_plan(inputs: HostInputs) -> HostPlan:
    """Account for the memory limit, or refuse and say what would help.

    A budget that is a size is taken at its word: it has to be had whole. One that the worker chooses takes what is left.
    The process gets `PROCESS_BYTES` for itself and its builders, or what is left where that is less.
    """
    facts, fixed = inputs.facts, inputs.ring + inputs.arena
    budget = hostbudget.resolve(inputs.config, facts, process=fixed, useful=inputs.useful, workers=inputs.workers)
    minimum = inputs.asked // inputs.share + inputs.least
    process, pool = PROCESS_BYTES, budget
    if facts.limit is not None:
        process = max(inputs.least - fixed, min(process, facts.limit - fixed - (budget or 0)))
    if pool is None:
        pool = hostbudget.most(inputs.config, facts, useful=inputs.useful)
        if facts.limit is not None:
            pool = max(0, min(pool, facts.limit - fixed - process))
    lacks = facts.limit is not None and minimum > facts.limit
    left = None if facts.limit is None or lacks else facts.limit - fixed - process - pool
    return HostPlan(
        budget=budget,
        asked=inputs.asked,
        mount=facts.mount,
        mount_bytes=facts.mount_total,
        limit=facts.limit,
        limit_setting=inputs.limit_setting,
        lines=tuple(_lines(inputs, pool, process, left)),
        minimum=minimum,
        shortfall=max(0, inputs.asked - facts.mount_total, 0 if facts.limit is None else minimum - facts.limit),
        knobs=tuple(_knobs(inputs, minimum)),
        warnings=() if lacks or process >= PROCESS_BYTES else (_tight(process),),
    )


def _tight(process: int) -> str:
    return (
        f"the memory limit leaves {process} bytes to the process and its builders, which is less than {PROCESS_BYTES}: "
        "a build that takes more is ended, and its model refused"
    )


def _lines(inputs: HostInputs, pool: int, process: int, left: int | None) -> Iterator[PlanLine]:
    source = {"auto": "what is free", "unlimited": "unlimited"}.get(str(inputs.config.budget), "configured")
    if inputs.share > 1:
        source += f", divided by {inputs.share} workers"
    yield PlanLine(POOL, pool, pool if inputs.asked else 0, source, "host.budget")
    yield PlanLine(RING, inputs.ring, inputs.ring, "weights without a page-locked copy", "")
    if inputs.arena:
        yield PlanLine(ARENA, inputs.arena, inputs.arena, "device memory on cpu", "device.budget")
    least = inputs.least - inputs.ring - inputs.arena
    yield PlanLine(PROCESS, process, least, "the worker and its builders; minimum measured", "")
    if left is not None:
        yield PlanLine(LEFT, left, 0, "the remainder", "")


def _knobs(inputs: HostInputs, minimum: int) -> Iterator[Knob]:
    """Every single setting that makes the plan fit.

    What an operator sets moves together: its user's limit is what is beside the budget, so that a smaller budget is a
    smaller limit, and a volume of the pod's own has at most the size of the limit.
    """
    asked, mount, limit = inputs.asked, inputs.facts.mount_total, inputs.facts.limit
    mount_short, limit_short = asked > mount, limit is not None and minimum > limit
    if (mount_short or limit_short) and (size := _smaller_budget(inputs)):
        yield Knob("host.budget", size, quantities.format_api(asked))
    if inputs.managed:
        follows = mount_short and inputs.config.sharing == "none"
        if limit is not None and (limit <= mount if follows else limit_short and not mount_short):
            own = quantities.format_api(limit - asked) if limit > asked else ""
            yield Knob(inputs.limit_setting, quantities.ceil_api(inputs.least), own)
        if mount_short and not limit_short and inputs.config.sharing == "node":
            yield Knob("the node's /dev/shm", quantities.ceil_api(asked), quantities.format_api(mount))
    elif mount_short and not limit_short:
        size = f"the size of {inputs.facts.mount}"
        yield Knob(size, quantities.ceil_api(asked), quantities.format_api(mount))
    elif limit is not None and limit_short and not mount_short:
        yield Knob(inputs.limit_setting, quantities.ceil_api(minimum), quantities.format_api(limit))
    if limit is not None and limit_short and not mount_short and inputs.device is not None and inputs.arena:
        room = inputs.arena - (minimum - limit)
        value = quantities.floor_api(max(0, room))
        if quantities.parse_api(value) >= max(1, inputs.device.minimum):
            yield Knob("device.budget", value, quantities.format_api(inputs.device.budget))


def _smaller_budget(inputs: HostInputs) -> str | None:
    """The largest budget below the configured one with which the plan fits, as a person types it."""
    size, limit = min(inputs.asked, inputs.facts.mount_total), inputs.facts.limit
    if limit is not None and not inputs.managed:
        size = min(size, (limit - inputs.least) * inputs.share)
    value = quantities.floor_api(max(0, size))
    size = quantities.parse_api(value)
    if not 0 < size < inputs.asked:
        return None
    if limit is not None and inputs.managed:
        limit -= inputs.asked - size
    return value if limit is None or size // inputs.share + inputs.least <= limit else None
