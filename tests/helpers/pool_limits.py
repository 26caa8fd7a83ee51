# SPDX-License-Identifier: Apache-2.0
"""A process under a real memory limit that takes a pool through all its stages; it prints what it found as JSON.

It is started inside the control group whose path it gets, and sets the limit itself, above what it uses by then.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import sys
from collections.abc import Callable
from pathlib import Path

from ballast_worker.bundle.reader import open_bundle
from ballast_worker.host.limits import MARGIN_BYTES, Available, available
from ballast_worker.host.pool import HostPool

MIB = 1 << 20
SEGMENT = 4 * MIB


class Stages:
    """One process's life under a limit."""

    def __init__(self, group: Path, directory: Path, bundles) -> None:
        self._group = next(
            (group / limit, group / usage)
            for limit, usage in (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))
            if (group / limit).exists()
        )
        self._directory = directory
        self._bundles = bundles
        self._ballast: list[mmap.mmap] = []

    def leave(self, nbytes: int) -> None:
        """Set the limit so many bytes above what is used and what the pool leaves to the process."""
        limit, usage = self._group
        limit.write_text(str(int(usage.read_text()) + MARGIN_BYTES + nbytes))

    def eat(self, nbytes: int) -> None:
        """Take memory, as the rest of the process may."""
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self._ballast.append(memory)

    def pool(self, budget: int | None, *, limits: Callable[[Path], Available] = available) -> HostPool:
        return HostPool(
            directory=self._directory, budget=budget, segment_bytes=SEGMENT, ring_bytes=4 * MIB, limits=limits
        )

    def load(self, pool: HostPool, number: int, *, keep: bool = False) -> dict:
        transfer = pool.acquire(self._bundles[number], keep=keep)
        digest = hashlib.sha256()
        for chunk in transfer.chunks():
            digest.update(chunk.data)
            if chunk.release is not None:
                chunk.release()
        transfer.close()
        return {"kept": transfer.kept, "sha256": digest.hexdigest()}

    def segments(self) -> int:
        return len(list(self._directory.glob("segment-*")))

    def at_the_start(self) -> dict:
        """The budget is more than the limit leaves."""
        self.leave(3 * SEGMENT + 6 * MIB)
        pool = self.pool(64 * MIB)
        found = {"segments": self.segments(), "trouble": pool.trouble([]).message}
        return found | {"loads": [self.load(pool, number) for number in range(len(self._bundles))]}

    def while_it_grows(self) -> dict:
        """Without a budget, until the limit leaves nothing."""
        self.leave(3 * SEGMENT + 6 * MIB)
        pool = self.pool(None)
        loads = [self.load(pool, number) for number in range(len(self._bundles))]
        return {"segments": self.segments(), "loads": loads}

    def before_the_first_load(self) -> dict:
        """The rest of the process takes what was left."""
        self.leave(3 * SEGMENT + 6 * MIB)
        pool = self.pool(None)
        self.eat(3 * SEGMENT)
        loads = [self.load(pool, number) for number in range(len(self._bundles))]
        return {"segments": self.segments(), "loads": loads}

    def for_copies_that_are_always_kept(self) -> dict:
        """Beyond the budget, as far as the limit goes."""
        self.leave(2 * SEGMENT + 6 * MIB)
        pool = self.pool(SEGMENT)
        loads = [self.load(pool, number, keep=True) for number in range(len(self._bundles))]
        return {"segments": self.segments(), "loads": loads}

    def without_asking(self) -> dict:
        """The control: whoever allocates without asking is killed."""
        self.leave(3 * SEGMENT)
        self.pool(MARGIN_BYTES + 16 * SEGMENT, limits=lambda _: Available(1 << 40, "nothing"))
        return {}


def main() -> None:
    stage, group, directory, *paths = sys.argv[1:]
    stages = Stages(Path(group), Path(directory), [open_bundle(path) for path in paths])
    print(json.dumps(getattr(stages, stage)()))


if __name__ == "__main__":
    main()
