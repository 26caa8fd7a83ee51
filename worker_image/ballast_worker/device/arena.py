# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping of an arena: which extent lies where, and what may be done to it. Touches no memory, knows no device.

Best fit, as in XLA's allocator: the smallest free block that holds the extent, the lowest among equals.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballast_worker.bundle.layout import ALIGNMENT
from ballast_worker.device.compaction import Block, Move
from ballast_worker.device.freelist import FreeList
from ballast_worker.device.memory import (
    BusyError,
    DeviceMemoryError,
    ExtentInfo,
    NotPlaceableError,
    State,
    Statistics,
)

REMEMBERED = 4096
"""Previous extents that are remembered, so that the memory of absent models does not grow for ever."""


@dataclass(slots=True)
class Extent:
    """Where a model lies. `leases` is above 0 only when it is not filling."""

    key: str
    offset: int
    nbytes: int
    pinned: bool
    filling: bool = True
    leases: int = 0

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.filling:
            return State.FILLING
        return State.EXECUTING if self.leases else State.READY

    @property
    def idle(self) -> bool:
        """It may be moved or freed."""
        return not self.filling and not self.leases


class Arena:
    """Extents over [0, capacity), bytes throughout. Not thread-safe.

    Invariants, between calls: extents are disjoint, and disjoint from every free block; their sizes and the free blocks
    sum to the capacity; offsets and sizes are multiples of 256; the free blocks are coalesced; an extent that is filling
    or leased has kept its offset since it was placed or leased. An extent of 0 bytes takes no room.
    """

    def __init__(self, capacity: int) -> None:
        if capacity % ALIGNMENT:
            raise ValueError(f"an arena of {capacity} bytes; its size is a multiple of {ALIGNMENT}")
        self._capacity = capacity
        self._free = FreeList(capacity)
        self._extents: dict[str, Extent] = {}
        self._previous: dict[str, int] = {}
        self._pinned = 0

    def __contains__(self, key: str) -> bool:
        return key in self._extents

    def extent(self, key: str) -> Extent:
        """The extent of a key.

        Raises:
            DeviceMemoryError: it has none.
        """
        try:
            return self._extents[key]
        except KeyError:
            raise DeviceMemoryError(f"'{key}' has no extent") from None

    def place(self, key: str, nbytes: int, *, pinned: bool) -> Extent:
        """Reserve an extent, at the key's previous place where that is free and does not cut a free block in two.

        Raises:
            NotPlaceableError: no free block is large enough.
            DeviceMemoryError: the key has an extent already, or the size is not a multiple of 256.
        """
        if key in self._extents:
            raise DeviceMemoryError(f"'{key}' has an extent already")
        if nbytes % ALIGNMENT or nbytes < 0:
            raise DeviceMemoryError(f"an extent of {nbytes} bytes for '{key}'; sizes are multiples of {ALIGNMENT}")
        offset = self._find(key, nbytes)
        if offset is None:
            raise NotPlaceableError(needed=nbytes, free=self._free.total, largest_free=self._free.largest)
        if nbytes:
            self._free.take(offset, nbytes)
        extent = self._extents[key] = Extent(key, offset, nbytes, pinned)
        self._pinned += nbytes if pinned else 0
        return extent

    def activate(self, key: str) -> None:
        """Filling -> ready."""
        self._filling(key).filling = False

    def abandon(self, key: str) -> int:
        """Filling -> free; returns the bytes freed."""
        return self._drop(self._filling(key))

    def lease(self, key: str) -> Extent:
        """Ready or executing -> executing."""
        extent = self.extent(key)
        if extent.filling:
            raise DeviceMemoryError(f"'{key}' is being filled: it cannot be executed from yet")
        extent.leases += 1
        return extent

    def unlease(self, key: str) -> None:
        """End one lease."""
        extent = self.extent(key)
        if not extent.leases:
            raise DeviceMemoryError(f"'{key}' is not leased")
        extent.leases -= 1

    def release(self, key: str) -> int:
        """Ready -> free; returns the bytes freed.

        Raises:
            BusyError: it is being filled or executed from.
        """
        extent = self.extent(key)
        if not extent.idle:
            raise BusyError(f"'{key}' is {extent.state.value}: it cannot be freed now")
        return self._drop(extent)

    def pin(self, key: str, *, pinned: bool) -> None:
        """Count the extent as pinned, or no longer."""
        extent = self.extent(key)
        self._pinned += (int(pinned) - int(extent.pinned)) * extent.nbytes
        extent.pinned = pinned

    def relocate(self, move: Move) -> None:
        """Record that the bytes of an idle extent lie elsewhere now; its old and new place may overlap.

        Raises:
            BusyError: it is being filled or executed from.
            DeviceMemoryError: it is not where the move begins, or the target is not free.
        """
        extent = self.extent(move.key)
        if not extent.idle:
            raise BusyError(f"'{move.key}' is {extent.state.value}: it cannot be moved now")
        if (extent.offset, extent.nbytes) != (move.source, move.nbytes) or move.target % ALIGNMENT:
            raise DeviceMemoryError(f"{move} does not match the extent at {extent.offset} of {extent.nbytes} bytes")
        self._free.give(move.source, move.nbytes)
        try:
            self._free.take(move.target, move.nbytes)
        except ValueError as error:
            self._free.take(move.source, move.nbytes)
            raise DeviceMemoryError(f"{move}: the target is not free") from error
        extent.offset = move.target

    def blocks(self) -> list[Block]:
        """Every extent with bytes, by offset, as the compaction planner wants them."""
        return [
            Block(extent.key, extent.offset, extent.nbytes, extent.idle, extent.pinned)
            for extent in self._ordered()
            if extent.nbytes
        ]

    def extents(self) -> tuple[ExtentInfo, ...]:
        """Every extent, by offset."""
        return tuple(
            ExtentInfo(extent.key, extent.offset, extent.nbytes, extent.state, extent.pinned)
            for extent in self._ordered()
        )

    def free_blocks(self) -> list[tuple[int, int]]:
        """(offset, size) of every free block, by offset."""
        return self._free.blocks()

    def statistics(self) -> Statistics:
        """Bytes now; O(1)."""
        return Statistics(
            capacity=self._capacity,
            in_use=self._capacity - self._free.total,
            pinned=self._pinned,
            largest_free=self._free.largest,
        )

    @property
    def capacity(self) -> int:
        """Bytes in all."""
        return self._capacity

    @property
    def leased(self) -> list[str]:
        """Keys of the extents that are executed from."""
        return [extent.key for extent in self._extents.values() if extent.leases]

    def _find(self, key: str, nbytes: int) -> int | None:
        if not nbytes:
            return 0
        hint = self._previous.get(key)
        if hint is not None:
            block = self._free.block_around(hint, nbytes)
            if block is not None and (hint == block[0] or hint + nbytes == block[0] + block[1]):
                return hint
        return self._free.best_fit(nbytes)

    def _filling(self, key: str) -> Extent:
        extent = self.extent(key)
        if not extent.filling:
            raise DeviceMemoryError(f"'{key}' is {extent.state.value}, not being filled")
        return extent

    def _drop(self, extent: Extent) -> int:
        del self._extents[extent.key]
        if extent.nbytes:
            self._free.give(extent.offset, extent.nbytes)
        self._pinned -= extent.nbytes if extent.pinned else 0
        self._previous.pop(extent.key, None)
        self._previous[extent.key] = extent.offset
        if len(self._previous) > REMEMBERED:
            del self._previous[next(iter(self._previous))]
        return extent.nbytes

    def _ordered(self) -> list[Extent]:
        return sorted(self._extents.values(), key=lambda extent: (extent.offset, extent.nbytes))
