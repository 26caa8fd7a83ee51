# SPDX-License-Identifier: Apache-2.0
"""Waiting at start for device memory that others are about to give back, and naming who holds it.

The driver frees the memory of a killed process some time after the process is gone, so that a worker which takes its
place at once finds too little. It waits for what it observes, and never finds out by an allocation that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ballast_worker.device.nvml import Holder, Usage

LIMIT_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5
QUIET_LOOKS: Final = 4
"""Looks without any change after which nothing more is expected while other processes stay; one is enough without any."""

_MOST_NAMES: Final = 4


def settle(
    look: Callable[[], Usage | None],
    wanted: int | None,
    *,
    pause: Callable[[float], bool],
    say: Callable[[str], None],
) -> Usage | None:
    """Wait until enough device memory is free, or no more is coming; blocks.

    Args:
        look: the device now, or None where the driver does not tell.
        wanted: bytes that have to be free; None takes what is there, once that has stopped growing.
        pause: waits for so many seconds; True ends the wait.
        say: told what is waited for.

    Returns:
        The last that was seen: with fewer bytes free than wanted after LIMIT_SECONDS, or None.
    """
    usage, quiet = look(), 0
    for _ in range(int(LIMIT_SECONDS / LOOK_SECONDS)):
        if usage is None or (wanted is not None and usage.free >= wanted):
            break
        if wanted is None and quiet >= (QUIET_LOOKS if usage.holders else 1):
            break
        if wanted is not None:
            say(f"waiting for {wanted} bytes of device memory: {usage.free} are free; {held_by(usage.holders)}")
        if pause(LOOK_SECONDS):
            break
        before, usage = usage, look()
        quiet = quiet + 1 if usage is not None and usage.free <= before.free else 0
    return usage


def held_by(holders: Sequence[Holder], *, proc: Path = Path("/proc")) -> str:
    """Who holds memory of the device, in words. A process of another container has a number only."""
    if not holders:
        return "no process is known to hold the rest"
    named = [_name(holder, proc) for holder in sorted(holders, key=lambda one: -(one.nbytes or 0))[:_MOST_NAMES]]
    more = f" and {len(holders) - _MOST_NAMES} more" if len(holders) > _MOST_NAMES else ""
    return f"held by {', '.join(named)}{more}"


def _name(holder: Holder, proc: Path) -> str:
    if not holder.pid:
        return "a process"
    try:
        name = (proc / str(holder.pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    size = "" if holder.nbytes is None else f" with {holder.nbytes} bytes"
    return f"process {holder.pid}{f' ({name})' if name else ''}{size}"
