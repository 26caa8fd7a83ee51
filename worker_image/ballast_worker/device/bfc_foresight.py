# SPDX-License-Identifier: Apache-2.0
"""Where XLA's allocator will put weights: by the replay of its choices for as long as its figures agree with that, else by
these alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ballast_worker.bundle.layout import Layout
from ballast_worker.device.bfc_pool import Pool, PoolStatistics
from ballast_worker.device.bfc_replay import BfcReplay
from ballast_worker.device.upload_order import UploadOrder, fitting_order, orders

_log = logging.getLogger(__name__)


class Foresight:
    """The replay of one pool. One thread at a time uses it.

    Args:
        pool: the allocator.
        scratch: bytes of one block that has to be free beside weights.

    Attributes:
        exact: the replay agrees with the allocator. Any thread may read it.
    """

    def __init__(self, pool: Pool, scratch: int) -> None:
        self._pool = pool
        self._scratch = scratch
        self._replay = BfcReplay(pool.nbytes)
        self.exact = True

    def order(self, layout: Layout) -> UploadOrder | None:
        """In which order to upload a model's tensors; None when there is no room for them."""
        if self.exact:
            return fitting_order(self._replay, layout, self._scratch)
        if layout.nbytes + self._scratch > self._pool.nbytes - self._pool.statistics().in_use:
            return None
        _, ascending, _ = orders(layout)
        return ascending

    def place(self, order: UploadOrder) -> list[int]:
        """The offsets that the allocator will give to tensors in this order; none when the replay cannot follow."""
        return self._replay.allocate_all(order.sizes) or []

    def free(self, offsets: Sequence[int]) -> int:
        """Forget what was placed there; returns the bytes of its chunks."""
        return self._replay.free_all(offsets)

    def rebuild(self, offsets: Sequence[int], order: UploadOrder, seen: Sequence[int]) -> list[int]:
        """Put what was placed at these offsets where the allocator has it, as far as the replay has nothing else there.

        Args:
            offsets: where the replay has it.
            order: of its tensors.
            seen: where the allocator has them, in this order.

        Returns:
            Where the replay has it now; fewer than `seen` when it could not follow.
        """
        self._replay.free_all(offsets)
        found: list[int] = []
        for offset, size in zip(seen, order.sizes, strict=True):
            try:
                self._replay.allocate_at(offset, size)
            except ValueError:
                break  # the comparison says so
            found.append(offset)
        return found

    def compare(self) -> None:
        """Set `exact` by the allocator's own figures, and say so when it changes. All that is placed has been uploaded."""
        seen, replay = self._pool.statistics(), self._replay
        exact = (seen.in_use, seen.largest_free) == (replay.in_use, replay.largest_free)
        if exact and not self.exact:
            _log.info("the replay of XLA's allocator agrees with it again")
        elif self.exact and not exact:
            _log.warning(
                "the replay of XLA's allocator does not agree with it: %d bytes are in use and %d are expected, the "
                "largest free block has %d and %d are expected; weights are admitted by the count of free bytes alone",
                *(seen.in_use, replay.in_use, seen.largest_free, replay.largest_free),
            )
        self.exact = exact

    def figures(self) -> PoolStatistics:
        """The figures to go by: of the replay, which knows what is placed and not uploaded yet, where it is exact."""
        if not self.exact:
            return self._pool.statistics()
        return PoolStatistics(self._replay.in_use, self._replay.largest_free)

    def chunk(self, offset: int) -> int:
        """Bytes of the chunk that was handed out at an offset."""
        return self._replay.chunk(offset)

    @property
    def capacity(self) -> int:
        """Bytes of the pool."""
        return self._replay.capacity
