# SPDX-License-Identifier: Apache-2.0
"""Processor time of processes: on a machine whose cores they share, who used it is the first question."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def seconds(pid: int) -> float:
    """Processor time of a process so far, of the user and of the system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Meter:
    """What each of some processes, by name, has used since the meter was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: seconds(pid) for name, pid in self._pids.items()}

    def spent(self) -> dict[str, float]:
        """Seconds of each, in the order of their names."""
        return {name: seconds(pid) - self._before[name] for name, pid in sorted(self._pids.items())}
