# SPDX-License-Identifier: Apache-2.0
"""A real memory control group of version 1 or 2 for one process of a test."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_numbers = itertools.count()


class MemoryGroup:
    """The group; processes join it by `join`, and all must have ended before `remove`."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: this process may not make control groups, or the kernel limits memory by none.
        """
        first = (ROOT / "memory" / "memory.limit_in_bytes").exists()
        self._limit, self._usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if first else ("memory.max", "memory.current")
        )
        self.path = ROOT / ("memory" if first else "") / f"ballast-test-{os.getpid()}-{next(_numbers)}"
        self.path.mkdir()
        if not (self.path / self._limit).exists():
            self.path.rmdir()
            raise OSError("the memory controller is not enabled")

    def join(self, command: list[str]) -> list[str]:
        """The command that runs another one inside the group."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.path), *command]

    def usage(self) -> int:
        """Bytes charged to it now."""
        return int((self.path / self._usage).read_text())

    def limit(self, nbytes: int) -> None:
        """Going over it is a kill from now on."""
        (self.path / self._limit).write_text(str(nbytes))

    def remove(self) -> None:
        """Remove it."""
        self.path.rmdir()
