# SPDX-License-Identifier: Apache-2.0
"""The waiting calls of one model: bounded, in order of arrival, expiring. Pure; time is passed in."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ballast_worker.serving.call import Call
from ballast_worker.serving.programs import Bucket, Program, ProgramTable


@dataclass(slots=True, eq=False)
class Waiting:
    """A call in a queue.

    Attributes:
        rows: of the call.
        arrived: monotonic seconds.
        bucket: the programs that may run it.
        sequence: order of arrival over all models.
    """

    call: Call
    rows: int
    arrived: float
    bucket: Bucket
    sequence: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that run together, in order of arrival."""

    program: Program
    members: tuple[Waiting, ...]
    rows: int


@dataclass(slots=True, eq=False)
class ModelQueue:
    """The waiting calls of one model.

    Attributes:
        limit: calls at most.
        max_delay: seconds for which a batch that is not full lets other models go first.
        virtual: virtual time, in seconds of the device.
        timer: the moment at which the engine will look at this queue's deadlines; None when nothing is set.
    """

    table: ProgramTable
    limit: int
    max_delay: float
    virtual: float = 0.0
    timer: float | None = None
    _buckets: dict[Bucket, OrderedDict[int, Waiting]] = field(default_factory=dict)
    # Also of calls that have left, until their turn comes: it must not keep them, nor what they were sent.
    _deadlines: list[tuple[float, int, Bucket]] = field(default_factory=list)
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        for calls in self._buckets.values():
            yield from calls.values()

    @property
    def full(self) -> bool:
        """One more call would exceed the limit."""
        return self._size >= self.limit

    def put(self, waiting: Waiting) -> None:
        """Add a call; only when not full."""
        self._buckets.setdefault(waiting.bucket, OrderedDict())[waiting.sequence] = waiting
        heapq.heappush(self._deadlines, (waiting.call.deadline, waiting.sequence, waiting.bucket))
        self._size += 1

    def oldest(self) -> Waiting | None:
        """The call that has waited longest."""
        fronts = [next(iter(calls.values())) for calls in self._buckets.values()]
        return min(fronts, key=lambda waiting: waiting.sequence, default=None)

    def deadline(self) -> float | None:
        """The earliest deadline of all waiting calls."""
        first = self._first()
        return None if first is None else first.call.deadline

    def take(self) -> Batch:
        """Take the next batch: the oldest call and those behind it that run with it. Only when not empty."""
        front = self.oldest()
        assert front is not None  # noqa: S101 - the caller's promise
        calls = self._buckets[front.bucket]
        program, count = self.table.choose(front.bucket, (waiting.rows for waiting in calls.values()))
        members = tuple(self._remove(calls, next(iter(calls))) for _ in range(count))
        if not calls:
            del self._buckets[front.bucket]
        return Batch(program, members, sum(waiting.rows for waiting in members))

    def expire(self, now: float) -> list[Waiting]:
        """Take the calls whose deadline has passed."""
        expired = []
        while (first := self._first()) is not None and first.call.deadline <= now:
            expired.append(self._drop(first))
        return expired

    def clear(self) -> list[Waiting]:
        """Take every call, in order of arrival."""
        everyone = sorted(self, key=lambda waiting: waiting.sequence)
        self._buckets.clear()
        self._deadlines.clear()
        self._size = 0
        return everyone

    def ripe(self, now: float) -> bool:
        """It need not wait for company: its batch is full, or its oldest call has waited as long as it may."""
        front = self.oldest()
        if front is None or now - front.arrived >= self.max_delay:
            return True
        limit = self.table.limit(front.bucket)
        return sum(waiting.rows for waiting in self._buckets[front.bucket].values()) >= limit

    def _drop(self, waiting: Waiting) -> Waiting:
        calls = self._buckets[waiting.bucket]
        self._remove(calls, waiting.sequence)
        if not calls:
            del self._buckets[waiting.bucket]
        return waiting

    def _remove(self, calls: OrderedDict[int, Waiting], sequence: int) -> Waiting:
        waiting = calls.pop(sequence)
        self._size -= 1
        return waiting

    def _first(self) -> Waiting | None:
        """The waiting call with the earliest deadline."""
        while self._deadlines:
            _, sequence, bucket = self._deadlines[0]
            waiting = self._buckets[bucket].get(sequence) if bucket in self._buckets else None
            if waiting is not None:
                return waiting
            heapq.heappop(self._deadlines)
        return None
