# SPDX-License-Identifier: Apache-2.0
"""DeviceMemory as ordinary JAX buffers in XLA's own allocator, whose choices are replayed to know what fits.

Weights share the pool with the scratch, inputs and outputs of executions. Those are gone whenever weights are placed and
filled, so that the replay of the weights alone is exact then. Nothing can move: room in one block is made by freeing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout, align
from ballast_worker.device.bfc_balance import Balance
from ballast_worker.device.bfc_foresight import Foresight
from ballast_worker.device.bfc_pool import Pool
from ballast_worker.device.lease import ExtentLease
from ballast_worker.device.memory import (
    BusyError,
    DeviceMemoryError,
    ExtentInfo,
    Moves,
    NotPlaceableError,
    State,
    Statistics,
)
from ballast_worker.device.upload_order import UploadOrder
from ballast_worker.device.uploading import upload


@dataclass(slots=True)
class _Content:
    """A model's weights.

    Attributes:
        order: in which its tensors are uploaded.
        offsets: where the replay has them, in that order; fewer when it could not follow.
        arrays: in the layout's order, once filled.
        taken: bytes that the allocator counted for them.
    """

    layout: Layout
    order: UploadOrder
    offsets: list[int]
    pinned: bool
    arrays: list[Any] = field(default_factory=list)
    taken: int = 0
    running: bool = False
    filled: bool = False
    ready: bool = False
    leases: int = 0

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if not self.ready:
            return State.FILLING
        return State.EXECUTING if self.leases else State.READY


class BfcMemory:
    """Implements `memory.DeviceMemory` in XLA's allocator.

    Weights may take all of the pool but `scratch` bytes, and are placed only where a free block of `scratch` bytes is
    left beside them, so that every program can run at any time. One extent is filled before the next is placed, else the
    replay is not exact; no lease may be held while one is filled.

    Where the allocator was seen to do otherwise than the replay says, `exact` is False, and extents are placed by the
    count of free bytes alone, until both agree again. What is in use beyond what weights hold is seen before and after
    each upload, when nothing else is under way, and is told as `leaked`.

    Args:
        pool: the allocator; on the CPU a `SimulatedPool` of as many bytes.
        scratch: bytes of one block that executions need.
    """

    shares_pool = True

    def __init__(self, pool: Pool, *, scratch: int) -> None:
        self._pool = pool
        self._scratch = align(scratch)
        self._lock = threading.Lock()
        self._foresight = Foresight(pool, self._scratch)
        self._balance = Balance(pool.statistics().in_use)
        self._contents: dict[str, _Content] = {}
        self._pinned = 0
        self._compare()

    @property
    def exact(self) -> bool:
        """The replay agrees with the allocator. Any thread."""
        return self._foresight.exact

    def place(self, key: str, layout: Layout, *, pinned: bool = False) -> None:
        """Reserve chunks for `key` in state filling: those that the allocator will give to its tensors."""
        with self._lock:
            if key in self._contents:
                raise DeviceMemoryError(f"'{key}' has an extent already")
            order = self._foresight.order(layout)
            if order is None:
                raise self._not_placeable(layout.nbytes)
            content = self._contents[key] = _Content(layout, order, self._foresight.place(order), pinned)
            self._pinned += self._bytes(content) if pinned else 0

    def fill(self, key: str, chunks: Iterable[Chunk], *, progress: Callable[[int], None] | None = None) -> None:
        """Upload a model's tensors in the order that was chosen; returns when the host has seen their end.

        Host memory is taken for what arrives before its turn. Nothing may execute meanwhile.

        Raises:
            DeviceMemoryError: also when a lease is held.
            DeviceError: the allocator or a copy failed.
        """
        with self._lock:
            content = self._content(key)
            if content.running or content.filled:
                raise DeviceMemoryError(f"'{key}' has been filled, or is being filled by another call")
            if leased := [other for other, one in self._contents.items() if one.leases]:
                raise DeviceMemoryError(f"'{key}' cannot be filled while others are executing: {leased}")
            content.running = True
            self._settle()
        try:
            arrays = upload(self._pool, content.layout, content.order, chunks, progress or (lambda _: None))
            with self._lock:
                content.arrays, content.filled = arrays, True
                content.taken = self._balance.took(self._pool.statistics().in_use)
                self._reconcile(content)
        finally:
            with self._lock:
                content.running = False
                if not content.filled:
                    self._settle(failed=(key,))

    def activate(self, key: str) -> None:
        """Filling -> ready."""
        with self._lock:
            content = self._filling(key)
            if not content.filled:
                raise DeviceMemoryError(f"'{key}' has not been filled to its end")
            content.ready = True

    def abandon(self, key: str) -> None:
        """Filling -> free."""
        with self._lock:
            if self._filling(key).running:
                raise DeviceMemoryError(f"'{key}' is being filled: only after `fill` has returned can it be abandoned")
            self._drop(key)

    def lease(self, key: str) -> ExtentLease:
        """Ready or executing -> executing.

        Raises:
            DeviceMemoryError: also while another extent is being filled.
        """
        with self._lock:
            content = self._content(key)
            if not content.ready:
                raise DeviceMemoryError(f"'{key}' is being filled: it cannot be executed from yet")
            if filling := [other for other, one in self._contents.items() if one.running]:
                raise DeviceMemoryError(f"'{key}' cannot be executed from while others are being filled: {filling}")
            content.leases += 1
        return ExtentLease(content.arrays, lambda: self._end_lease(content))

    def release(self, key: str) -> int:
        """Ready -> free; returns the bytes freed, more than the model's where chunks had been handed out whole."""
        with self._lock:
            content = self._content(key)
            if content.state is not State.READY:
                raise BusyError(f"'{key}' is {content.state.value}: it cannot be freed now")
            return self._drop(key)

    def pin(self, key: str, *, pinned: bool) -> None:
        """Count the extent as pinned, or no longer."""
        with self._lock:
            content = self._content(key)
            self._pinned += (int(pinned) - int(content.pinned)) * self._bytes(content)
            content.pinned = pinned

    def moves_for(self, nbytes: int) -> Moves | None:
        """None are needed, or none help."""
        return Moves(0, 0) if nbytes <= self.statistics().largest_free else None

    def make_room(self, nbytes: int) -> Moves:
        """Nothing moves."""
        if (moves := self.moves_for(nbytes)) is None:
            with self._lock:
                raise self._not_placeable(nbytes)
        return moves

    def compact(self) -> Moves:
        """Nothing moves."""
        return Moves(0, 0)

    def starved(self) -> bool:
        """No free block holds the scratch of executions."""
        with self._lock:
            return self._foresight.figures().largest_free < self._scratch

    def statistics(self) -> Statistics:
        """Bytes that weights may take; `largest_free` is what they may take of the largest block at most."""
        with self._lock:
            return self._statistics()

    def extents(self) -> tuple[ExtentInfo, ...]:
        """Every run of neighbouring chunks of one model, by offset; a model may lie in several."""
        with self._lock:
            chunks = [(0, 0, key) for key, content in self._contents.items() if not content.offsets]
            chunks += [
                (offset, self._foresight.chunk(offset), key)
                for key, content in self._contents.items()
                for offset in content.offsets
            ]
            runs: list[tuple[int, int, str]] = []
            for offset, size, key in sorted(chunks):
                if runs and runs[-1][2] == key and sum(runs[-1][:2]) == offset:
                    runs[-1] = (runs[-1][0], runs[-1][1] + size, key)
                else:
                    runs.append((offset, size, key))
            return tuple(
                ExtentInfo(key, offset, size, self._contents[key].state, self._contents[key].pinned)
                for offset, size, key in runs
            )

    def close(self) -> None:
        """Free everything."""
        with self._lock:
            leased = [key for key, content in self._contents.items() if content.leases]
            running = [key for key, content in self._contents.items() if content.running]
            if leased or running:
                raise DeviceMemoryError(f"still leased: {leased}, still being filled: {running}")
            for key in list(self._contents):
                self._drop(key)

    def _reconcile(self, content: _Content) -> None:
        """Compare the addresses of what was filled with what was foreseen."""
        seen = [self._pool.offset(content.arrays[index]) for index in content.order.tensors]
        if seen != content.offsets:
            self._pinned -= self._bytes(content) if content.pinned else 0
            content.offsets = self._foresight.rebuild(content.offsets, content.order, seen)
            self._pinned += self._bytes(content) if content.pinned else 0
        self._compare()

    def _compare(self) -> None:
        # What is only reserved is not in the allocator's figures.
        if all(content.filled for content in self._contents.values()):
            self._foresight.compare()

    def _statistics(self) -> Statistics:
        now = self._foresight.figures()
        capacity = max(0, self._foresight.capacity - self._scratch)
        in_use = min(capacity, now.in_use)
        return Statistics(
            capacity,
            in_use,
            self._pinned,
            min(capacity - in_use, now.largest_free),
            foreseen=self.exact,
            leaked=self._balance.leaked,
            leaked_total=self._balance.leaked_total,
        )

    def _not_placeable(self, nbytes: int) -> NotPlaceableError:
        now = self._statistics()
        return NotPlaceableError(needed=nbytes, free=now.free, largest_free=now.largest_free)

    def _content(self, key: str) -> _Content:
        try:
            return self._contents[key]
        except KeyError:
            raise DeviceMemoryError(f"'{key}' has no extent") from None

    def _filling(self, key: str) -> _Content:
        content = self._content(key)
        if content.ready:
            raise DeviceMemoryError(f"'{key}' is {content.state.value}, not being filled")
        return content

    def _bytes(self, content: _Content) -> int:
        return sum(self._foresight.chunk(offset) for offset in content.offsets)

    def _settle(self, *, failed: Iterable[str] = ()) -> None:
        """Wait until the allocator has back what weights do not take, and count what it has not got by then."""
        self._pool.settle(self._balance.expected)
        self._balance.compare(self._pool.statistics().in_use, failed=failed)

    def _drop(self, key: str) -> int:
        content = self._contents.pop(key)
        for array in content.arrays:
            self._pool.free(array)
        self._balance.freed(key, content.taken)
        freed = self._foresight.free(content.offsets)
        self._pinned -= freed if content.pinned else 0
        if not self.exact or not content.filled:
            self._compare()  # a failed upload says that something is there which the replay does not know
        return freed

    def _end_lease(self, content: _Content) -> None:
        with self._lock:
            content.leases -= 1
