# SPDX-License-Identifier: Apache-2.0
"""DeviceMemory as one arena: an extent for each model, zero-copy views for JAX, compaction by moving."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import ALIGNMENT, Layout
from ballast_worker.device import compaction
from ballast_worker.device.arena import Arena
from ballast_worker.device.backend import Backend, DeviceError, DeviceLostError
from ballast_worker.device.filling import Filling
from ballast_worker.device.former_views import FormerViews
from ballast_worker.device.lease import ExtentLease
from ballast_worker.device.memory import (
    DeviceMemoryError,
    ExtentInfo,
    Moves,
    NotPlaceableError,
    Statistics,
)
from ballast_worker.device.views import Viewer, check_support


@dataclass(slots=True)
class _Content:
    """What is in an extent: its layout, and the views of it, which are None before the fill and after a move."""

    layout: Layout
    views: list[Any] | None = None
    running: bool = False
    filled: bool = False


class ArenaMemory:
    """Implements `memory.DeviceMemory`.

    Only the device thread changes `_arena` and the set of contents, so that it may read them without the lock; it changes
    them under the lock, because `statistics` and `extents` read them from any thread. A content is touched by the copy
    thread alone while `running`, and the arena does not move or free its extent meanwhile, because it is filling.

    Args:
        backend: the device; its block is allocated here, once.
        capacity: bytes for weights, of which the largest multiple of 256 is used.
        clock: seconds, for the durations that are reported.

    Raises:
        DeviceError: the device does not have so many bytes.
        UnsupportedJaxlibError: the installed jaxlib cannot alias the block.
    """

    shares_pool = False

    def __init__(
        self,
        backend: Backend,
        capacity: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        capacity = max(0, capacity) // ALIGNMENT * ALIGNMENT
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._arena = Arena(capacity)
        self._contents: dict[str, _Content] = {}
        self._former = FormerViews()
        self._lost: DeviceLostError | None = None
        backend.allocate(capacity)
        self._viewer = Viewer(backend.device)
        if capacity:
            check_support(self._viewer, backend.address)

    def place(self, key: str, layout: Layout, *, pinned: bool = False) -> None:
        """Reserve an extent for `key` in state filling, at its previous place where that costs nothing; else best fit."""
        self._check()
        with self._lock:
            self._arena.place(key, layout.nbytes, pinned=pinned)
            self._contents[key] = _Content(layout)

    def fill(self, key: str, chunks: Iterable[Chunk], *, progress: Callable[[int], None] | None = None) -> None:
        """Copy a model's bytes into its extent, a few pieces in flight, and build its views meanwhile, unless it had some
        at this place before.

        When a chunk is asked for, every earlier one that waits to be released has been but the last: an iterator over a
        ring of two buffers may wait for a free one.
        """
        with self._lock:
            content = self._content(key)
            if content.running or content.filled:
                raise DeviceMemoryError(f"'{key}' has been filled, or is being filled by another call")
            extent = self._arena.extent(key)
            content.running = True
        address = self._backend.address + extent.offset
        filling = Filling(self._backend, extent.offset, content.layout, progress, self._former.drain)
        former = self._former.take(key, address, content.layout)
        try:
            built = filling.run(
                chunks,
                () if former is not None else content.layout.tensors,
                lambda placed: self._viewer.view(address + placed.offset, placed.spec),
            )
            content.views = former if former is not None else built
            content.filled = True
        finally:
            content.running = False

    def activate(self, key: str) -> None:
        """Filling -> ready."""
        with self._lock:
            if not self._content(key).filled:
                raise DeviceMemoryError(f"'{key}' has not been filled to its end")
            self._arena.activate(key)

    def abandon(self, key: str) -> None:
        """Filling -> free."""
        with self._lock:
            if self._content(key).running:
                raise DeviceMemoryError(f"'{key}' is being filled: only after `fill` has returned can it be abandoned")
            offset = self._arena.extent(key).offset
            self._arena.abandon(key)
            content = self._contents.pop(key)
        self._forget(key, offset, content)

    def lease(self, key: str) -> ExtentLease:
        """The right to execute from an extent; its views are built anew after a move."""
        self._check()
        with self._lock:
            extent = self._arena.lease(key)
            content = self._contents[key]
        if content.views is None:
            try:
                content.views = self._viewer.views(self._backend.address + extent.offset, content.layout.tensors)
            except BaseException:
                self._end_lease(key)
                raise
        return ExtentLease(content.views, lambda: self._end_lease(key))

    def release(self, key: str) -> int:
        """Ready -> free; returns the bytes freed."""
        with self._lock:
            offset = self._arena.extent(key).offset
            freed = self._arena.release(key)
            content = self._contents.pop(key)
        self._forget(key, offset, content)
        return freed

    def pin(self, key: str, *, pinned: bool) -> None:
        """Count the extent as pinned, or no longer."""
        with self._lock:
            self._arena.pin(key, pinned=pinned)

    def moves_for(self, nbytes: int) -> Moves | None:
        """The fewest bytes to move so that a block of `nbytes` is free, or None when no plan was found."""
        moves = self._plan(nbytes)
        return None if moves is None else Moves(len(moves), sum(move.nbytes for move in moves))

    def make_room(self, nbytes: int) -> Moves:
        """Carry out the moves of `moves_for`."""
        moves = self._plan(nbytes)
        if moves is None:
            statistics = self.statistics()
            raise NotPlaceableError(needed=nbytes, free=statistics.free, largest_free=statistics.largest_free)
        return self._carry_out(moves)

    def compact(self) -> Moves:
        """Slide every idle extent down."""
        return self._carry_out(compaction.plan_slide(self._arena.blocks()))

    def starved(self) -> bool:
        """Executions have a pool of their own."""
        return False

    def statistics(self) -> Statistics:
        """A consistent snapshot, from any thread; O(1)."""
        with self._lock:
            return self._arena.statistics()

    def extents(self) -> tuple[ExtentInfo, ...]:
        """Every extent in order of its offset, from any thread."""
        with self._lock:
            return self._arena.extents()

    def close(self) -> None:
        """Free everything."""
        with self._lock:
            leased = self._arena.leased
            running = [key for key, content in self._contents.items() if content.running]
            if leased or running:
                raise DeviceMemoryError(f"still leased: {leased}, still being filled: {running}")
            dropped, self._contents = self._contents, {}
            self._arena = Arena(0)
        del dropped
        self._former.clear()
        self._backend.close()

    def _plan(self, nbytes: int) -> tuple[compaction.Move, ...] | None:
        needed = -(-nbytes // ALIGNMENT) * ALIGNMENT
        return compaction.plan_room(self._arena.blocks(), self._arena.capacity, needed)

    def _carry_out(self, moves: Sequence[compaction.Move]) -> Moves:
        """Move bytes, then the books. Nothing leases or frees meanwhile: only this thread does."""
        self._check()
        began = self._clock()
        try:
            for move in moves:
                self._backend.move(move.source, move.target, move.nbytes)
            self._backend.finish_moves()
        except DeviceError as error:
            self._lost = DeviceLostError(f"a compaction failed half way, the arena's contents are unknown: {error}")
            raise self._lost from error
        with self._lock:
            for move in moves:
                self._arena.relocate(move)
        for move in moves:
            content = self._contents[move.key]
            self._forget(move.key, move.source, content)
            content.views = None
        return Moves(len(moves), sum(move.nbytes for move in moves), self._clock() - began)

    def _check(self) -> None:
        """Raise once it is not known what lies where."""
        if self._lost:
            raise self._lost

    def _forget(self, key: str, offset: int, content: _Content) -> None:
        if content.views is not None:
            self._former.put(key, self._backend.address + offset, content.layout, content.views)

    def _content(self, key: str) -> _Content:
        self._arena.extent(key)
        return self._contents[key]

    def _end_lease(self, key: str) -> None:
        with self._lock:
            self._arena.unlease(key)
