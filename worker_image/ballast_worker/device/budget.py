# SPDX-License-Identifier: Apache-2.0
"""How much device memory the whole worker process may hold: from the configuration and what was observed at start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_contract import quantities
from ballast_worker.device.probe import DeviceFacts

CPU_DEFAULT: Final = 1 << 30
"""Bytes; what a worker on cpu plans with when nothing is configured."""


class BudgetError(ValueError):
    """The budget cannot be known; the message names the setting that says it outright."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget and how it came about.

    Attributes:
        nbytes: device memory that the whole process may hold.
        source: in words.
        setting: device.budget as it is set now, `unset` when it is not.
        available: bytes that were free on the device at start; None when not known, or on cpu.
        reserve: what was subtracted from the free bytes; None unless the budget was derived from them.
        held: who else holds memory of the device, in words.
    """

    nbytes: int
    source: str
    setting: str
    available: int | None = None
    reserve: int | None = None
    held: str = ""


def resolve(configured: int | str | None, reserve: int, facts: DeviceFacts) -> Budget:
    """The budget: configured bytes, a percentage of the card, or what is free minus the reserve.

    Args:
        configured: `device.budget`: bytes, text such as '90%', or None.
        reserve: `device.reserve`, in bytes; only used when nothing is configured.
        facts: what was observed before the first context of this process.

    Raises:
        BudgetError: a percentage of an unknown total, or nothing configured and the free bytes unknown.
    """
    available = facts.free_bytes
    if isinstance(configured, int):
        return Budget(configured, "device.budget", quantities.format_api(configured), available)
    if configured is not None:
        percent = quantities.parse_percent(configured)
        if facts.total_bytes is None:
            raise BudgetError(
                f"device.budget '{configured}' is a share of the device, whose size is not known on {facts.kind}: "
                "write a size, as in 1536Mi"
            )
        nbytes = facts.total_bytes * percent // 100
        return Budget(nbytes, f"{percent}% of {facts.total_bytes} bytes", configured, available)
    if facts.kind == "cpu":
        return Budget(CPU_DEFAULT, "the default on cpu", "unset")
    if available is None:
        raise BudgetError(
            f"device.budget is unset and the free memory of {facts.name} cannot be read: write a size, as in 60Gi"
        )
    source = f"{available} bytes free at start - device.reserve"
    return Budget(max(0, available - reserve), source, "unset", available, reserve)
