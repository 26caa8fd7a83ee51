# SPDX-License-Identifier: Apache-2.0
"""The free blocks of an arena: best fit and immediate coalescing.

Both orders are plain sorted lists: finding is a bisection, and the memmove of an insertion moves 80 KB at 10,000 free
blocks, which takes about as long as one level of a balanced tree in Python.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class FreeList:
    """Free blocks of [0, capacity), bytes throughout.

    Invariants, between calls: `_offsets` is sorted and the blocks are disjoint and not empty; no block begins where
    another ends (always coalesced); `_by_size` holds exactly (size, offset) of each block, sorted; `total` is the sum of
    the sizes.
    """

    def __init__(self, capacity: int) -> None:
        self._sizes: dict[int, int] = {}
        self._offsets: list[int] = []
        self._by_size: list[tuple[int, int]] = []
        self.total = 0
        if capacity:
            self._add(0, capacity)
            self.total = capacity

    @property
    def largest(self) -> int:
        """Bytes of the largest block; 0 when there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def blocks(self) -> list[tuple[int, int]]:
        """(offset, size) of every block, by offset."""
        return [(offset, self._sizes[offset]) for offset in self._offsets]

    def best_fit(self, nbytes: int, *, beside: int | None = None) -> int | None:
        """Offset of the smallest block of at least `nbytes`, the lowest among equals; None when there is none.

        The block that begins at `beside` is not considered.
        """
        index = bisect_left(self._by_size, (nbytes, 0))
        if index < len(self._by_size) and self._by_size[index][1] == beside:
            index += 1
        return self._by_size[index][1] if index < len(self._by_size) else None

    def last(self) -> tuple[int, int] | None:
        """(offset, size) of the block with the highest offset, or None."""
        return (self._offsets[-1], self._sizes[self._offsets[-1]]) if self._offsets else None

    def block_around(self, offset: int, nbytes: int) -> tuple[int, int] | None:
        """(offset, size) of the block that holds all of [offset, offset + nbytes), or None."""
        index = bisect_right(self._offsets, offset) - 1
        if index < 0:
            return None
        start = self._offsets[index]
        size = self._sizes[start]
        return (start, size) if offset + nbytes <= start + size else None

    def take(self, offset: int, nbytes: int) -> None:
        """Make [offset, offset + nbytes) no longer free.

        Raises:
            ValueError: it is not all free.
        """
        block = self.block_around(offset, nbytes)
        if block is None or nbytes <= 0:
            raise ValueError(f"{nbytes} bytes at {offset} are not free")
        start, size = block
        self._remove(start)
        if offset > start:
            self._add(start, offset - start)
        if offset + nbytes < start + size:
            self._add(offset + nbytes, start + size - offset - nbytes)
        self.total -= nbytes

    def give(self, offset: int, nbytes: int) -> None:
        """Make [offset, offset + nbytes) free again, one block with its free neighbours.

        Raises:
            ValueError: part of it is free already.
        """
        index = bisect_left(self._offsets, offset)
        start, end = offset, offset + nbytes
        if index < len(self._offsets) and self._offsets[index] < end:
            raise ValueError(f"{nbytes} bytes at {offset} are partly free already")
        after = self._offsets[index] if index < len(self._offsets) else None
        if index:
            before = self._offsets[index - 1]
            edge = before + self._sizes[before]
            if edge > offset:
                raise ValueError(f"{nbytes} bytes at {offset} are partly free already")
            if edge == offset:
                start = before
                self._remove(before)
        if after == end:
            end += self._sizes[after]
            self._remove(after)
        self._add(start, end - start)
        self.total += nbytes

    def _add(self, offset: int, size: int) -> None:
        self._sizes[offset] = size
        insort(self._offsets, offset)
        insort(self._by_size, (size, offset))

    def _remove(self, offset: int) -> None:
        size = self._sizes.pop(offset)
        del self._offsets[bisect_left(self._offsets, offset)]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
