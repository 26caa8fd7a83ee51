# SPDX-License-Identifier: Apache-2.0
"""How many segments a pool has: the budget is a number of segments, allocated where memory allows it.

Only copies that are always kept may take more, and what is beyond the budget is given back when nothing holds it any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ballast_contract.quantities import human
from ballast_worker.host import regions
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.limits import Available
from ballast_worker.host.table import Entry, Table

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Swept:
    """What killed processes had left in a pool and this process has freed.

    Attributes:
        regions: regions whose filler died or whose segment was gone.
        nbytes: their pages, and segment files that had not come into the table.
    """

    regions: int = 0
    nbytes: int = 0


class Supply:
    """The segments of a pool, as many as budget and memory allow. Any thread.

    Attributes:
        most: segments that the budget allows; None is unlimited.
        shortage: why there are fewer than the budget says, as the start and then each load found it; None when there are
            not.
        swept: what was put right at the start.
    """

    def __init__(self, directory: PoolDirectory, *, budget: int | None, limits: Callable[[Path], Available]) -> None:
        """Put right what killed processes left, trim to the budget and allocate up to it.

        Args:
            directory: of the pool.
            budget: bytes; None is unlimited.
            limits: how much memory may still be taken.

        Raises:
            HostPoolError: the table is damaged.
            OSError: the file system failed.
        """
        self._directory = directory
        self._budget = budget
        self._limits = limits
        self._segment_bytes = directory.table.segment_bytes
        self.most = None if budget is None else budget // self._segment_bytes
        self.shortage: str | None = None
        self.swept = Swept()
        with directory.locked():
            self._count(regions.drop_missing_segments(directory))
            self.drop_dead()
        self.swept.nbytes += regions.remove_strays(directory) * self._segment_bytes
        if self.most is not None:
            with directory.locked():
                regions.trim(directory, segments=self.most)
            while self._add(most=self.most):
                pass
            there = len(directory.table.read().segments)  # what others have added to a shared pool counts too
            if there < self.most:
                self.shortage = (
                    f"{directory.path} has {there} of {self.most} segments of {human(self._segment_bytes)}: "
                    f"{self._no_segment()}; what does not fit into them is streamed from its file at each load"
                )

    def drop_dead(self) -> Table:
        """See `regions.drop_dead`; counts what goes. Hold the table's lock."""
        table, dead = regions.drop_dead(self._directory)
        self._count(dead)
        return table

    def _count(self, swept: Collection[Entry]) -> None:
        self.swept.regions += len(swept)
        self.swept.nbytes += sum(entry.host_bytes for entry in swept)

    def settle(self, table: Table) -> bool:
        """Give back segments beyond the budget that nothing holds any more, before a load.

        Args:
            table: as it is now.

        Returns:
            Whether there are as many as the budget says, so that a load without room has to evict.
        """
        there = len(table.segments)
        if self.most is None or there < self.most:
            return False
        self.shortage = None
        if there > self.most:
            with self._directory.locked():
                regions.trim(self._directory, segments=self.most)
        return True

    def settled(self, table: Table) -> bool:
        """Whether `settle` has nothing to do."""
        there = len(table.segments)
        return self.most is None or there < self.most or (there == self.most and self.shortage is None)

    def grow(self, segments: int, *, keep: bool) -> bool:
        """One more segment than so many, where the budget, or a copy that is always kept, allows it and memory is there."""
        beyond = self.most is not None and segments >= self.most
        if (beyond and not keep) or not self._add(most=None if keep else self.most):
            return False
        if beyond:
            _log.warning(
                "kept copies exceed the host budget of %s in %s: one more segment of %s was taken",
                human(self._budget or 0),
                self._directory.path,
                human(self._segment_bytes),
            )
        return True

    def excess(self) -> int:
        """Bytes of the segments beyond the budget.

        Raises:
            HostPoolError: the table is damaged.
        """
        if self.most is None:
            return 0
        return max(0, len(self._directory.table.read().segments) - self.most) * self._segment_bytes

    def why_full(self, segments: int) -> str:
        """Why there is no room with so many segments, for people."""
        if self.most is not None and segments >= self.most:
            return f"the budget of {human(self._budget or 0)} is taken by copies that are kept or in transfer"
        return self._no_segment()

    def _add(self, *, most: int | None) -> bool:
        directory = self._directory
        try:
            return regions.add_segment(
                directory, most=most, room=lambda: self._limits(directory.path).nbytes >= self._segment_bytes
            )
        except OSError as error:
            _log.warning("no further segment in %s: %s", directory.path, error)
            return False

    def _no_segment(self) -> str:
        limit = self._limits(self._directory.path)
        return f"{limit.limit} leaves {human(limit.nbytes)}, and a segment takes {human(self._segment_bytes)}"
