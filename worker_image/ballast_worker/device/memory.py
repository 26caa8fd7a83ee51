# SPDX-License-Identifier: Apache-2.0
"""The interface of device memory: place, fill, lease, release, compact, statistics; no caller sees an address.

An extent goes free -> filling -> ready -> executing -> ready -> free. It is filled, moved or freed only after the host
has seen all outputs of its last execution ready, and an execution is enqueued only after the host has seen the copy's
end. The lease is the one thing that enforces this; nothing else touches extents.

Threads: `fill` runs on the copy thread; every other call comes from the device thread, except `statistics` and
`extents`, which any thread may call and which return a consistent snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout


class State(Enum):
    """Where an extent is in its life."""

    FILLING = "filling"
    READY = "ready"
    EXECUTING = "executing"


@dataclass(frozen=True, slots=True)
class ExtentInfo:
    """One extent, for maps and tests: bytes from the start of the arena, never an address."""

    key: str
    offset: int
    nbytes: int
    state: State
    pinned: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bytes for weights at one moment. capacity == in_use + free.

    Attributes:
        foreseen: where extents will lie is known before they are placed. False: only free bytes are counted.
        leaked: bytes that the allocator has in use beyond weights while nothing executes, as last seen before or after an
            upload. Never any in an arena, whose extents and free blocks are parts of one allocation.
        leaked_total: all that came to be so; what came back later is not taken off.
    """

    capacity: int
    in_use: int
    pinned: int
    largest_free: int
    foreseen: bool = True
    leaked: int = 0
    leaked_total: int = 0

    @property
    def free(self) -> int:
        """Bytes in no extent."""
        return self.capacity - self.in_use

    @property
    def fragmentation(self) -> float:
        """1 - largest free block / free bytes: 0 when the free memory is one block, or none."""
        return 1.0 - self.largest_free / self.free if self.free else 0.0


@dataclass(frozen=True, slots=True)
class Moves:
    """What a compaction did, or would do."""

    count: int
    nbytes: int
    seconds: float = 0.0


class DeviceMemoryError(Exception):
    """A caller broke the rules above: a bug, never an answer to a user."""


class NotPlaceableError(Exception):
    """No free block takes the extent. Nothing was changed.

    Attributes:
        needed: bytes asked for.
        free: bytes free in all.
        largest_free: bytes of the largest free block.
    """

    def __init__(self, *, needed: int, free: int, largest_free: int) -> None:
        super().__init__(f"{needed} bytes do not fit: {free} are free, {largest_free} of them in one block")
        self.needed = needed
        self.free = free
        self.largest_free = largest_free


class BusyError(Exception):
    """The extent is being filled or executed from. Nothing was changed."""


class Lease(Protocol):
    """The right to execute from an extent. While one is held the extent is not moved, filled or freed."""

    @property
    def arrays(self) -> Sequence[Any]:
        """One jax.Array per tensor of the layout, in argument order: zero-copy views, valid until `release`."""
        ...

    def release(self) -> None:
        """Give the right back, after the host has seen every output of the execution ready. Once only."""
        ...


class DeviceMemory(Protocol):
    """One block of device memory that holds the weights of many models, an extent for each."""

    @property
    def shares_pool(self) -> bool:
        """Weights lie in the allocator that executions take their scratch from. So nothing moves (`moves_for` answers no
        count above 0), one extent is placed and filled at a time, and nothing executes meanwhile.
        """
        ...

    def place(self, key: str, layout: Layout, *, pinned: bool = False) -> None:
        """Reserve an extent for `key` in state filling; best fit. Where the pool is shared, a block is left for executions.

        Raises:
            NotPlaceableError: no free block is large enough (see `moves_for`, `make_room`).
            DeviceMemoryError: the key has an extent already.
        """
        ...

    def fill(self, key: str, chunks: Iterable[Chunk], *, progress: Callable[[int], None] | None = None) -> None:
        """Copy a model's packed bytes into its extent and build its views; returns when the host has seen the end.

        Runs on the copy thread; where executions go on meanwhile, their inputs do not wait for its end. `progress` is called
        with the bytes done so far. The chunks cover the layout exactly once, in any order. An exception of the iterator passes
        through; the extent then stays in state filling and the caller abandons it.
        """
        ...

    def activate(self, key: str) -> None:
        """Filling -> ready, after `fill` has returned."""
        ...

    def abandon(self, key: str) -> None:
        """Filling -> free, after `fill` has returned or raised, or without it."""
        ...

    def lease(self, key: str) -> Lease:
        """Ready or executing -> executing. Leases of one extent nest.

        Raises:
            DeviceMemoryError: the key has no extent, or it is being filled.
        """
        ...

    def release(self, key: str) -> int:
        """Ready -> free; returns the bytes freed.

        Raises:
            BusyError: the extent is being filled or executed from.
        """
        ...

    def pin(self, key: str, *, pinned: bool) -> None:
        """Count the extent as pinned, or no longer. It may still slide in a compaction when idle: pinning promises the
        device, not an address.
        """
        ...

    def moves_for(self, nbytes: int) -> Moves | None:
        """The fewest bytes to move so that a block of `nbytes` is free (0 when one is), or None when no moves of idle
        extents make one. A pure question.
        """
        ...

    def make_room(self, nbytes: int) -> Moves:
        """Carry out the moves of `moves_for`; returns when the host has seen their end.

        Raises:
            NotPlaceableError: `moves_for` answers None.
        """
        ...

    def compact(self) -> Moves:
        """Slide every idle extent down, so that the free memory is as few blocks as the busy ones allow."""
        ...

    def starved(self) -> bool:
        """Whether the weights leave executions too little in one block, so that some of them have to go first. Never where
        the pool is not shared.
        """
        ...

    def statistics(self) -> Statistics:
        """A consistent snapshot, from any thread."""
        ...

    def extents(self) -> tuple[ExtentInfo, ...]:
        """Every extent in order of its offset, from any thread."""
        ...

    def close(self) -> None:
        """Free everything. No lease may be held, no fill may run."""
        ...
