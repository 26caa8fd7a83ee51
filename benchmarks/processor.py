# SPDX-License-Identifier: Apache-2.0
"""Processor time of processes: on a machine whose cores they share, who used it is the first question."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def seconds(pid: int) -> float:
    """Processor time of a process so far, of the user and of the system."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS


def group_seconds(group: int) -> float:
    """The same of all processes that now are in a process group."""
    total = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(_fields(process / "stat")[2]) == group:
                total += seconds(int(process.name))
    return total


def _fields(stat: Path) -> list[str]:
    """What follows the name, which may have spaces and parentheses itself."""
    return stat.read_text().rpartition(")")[2].split()


class Meter:
    """What each of some processes, by name, has used since the meter was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: seconds(pid) for name, pid in self._pids.items()}

    def spent(self) -> dict[str, float]:
        """Seconds of each, in the order of their names."""
        return {name: seconds(pid) - self._before[name] for name, pid in sorted(self._pids.items())}
