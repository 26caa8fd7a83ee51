# SPDX-License-Identifier: Apache-2.0
"""Which keys are to be reconciled, and when: a set of dirty keys with one worker at most for each.

A pure core with an injected clock; `dispatch.py` turns it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Entry:
    due: float | None = None
    running: bool = False
    failures: int = 0
    not_before: float = 0.0


class WorkQueue(Generic[K]):
    """Dirty keys with due times.

    A key is in flight at most once; one that is added meanwhile runs again afterwards. Of several due times the
    earliest holds. A failed key comes back after `base`, twice, four times that ..., at most `limit` s, with jitter; an event may bring it back
    sooner, but within a streak of failures never at once, so that a key which fails by its own write does not spin.
    `spacing` is the least time between the starts of two runs of a key, so that bursts are taken together. Of the keys
    that are due, those of a lower `lane` come first: a few that many wait for are not held up by the many.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        base: float = 0.005,
        limit: float = 60.0,
        impatience: float = 1.0,
        spacing: Callable[[K], float] = lambda _: 0.0,
        lane: Callable[[K], int] = lambda _: 0,
    ) -> None:
        self._clock = clock
        self._random = rng
        self._base = base
        self._limit = limit
        self._impatience = impatience
        self._spacing = spacing
        self._entries: dict[K, _Entry] = {}
        self._lane = lane
        self._heaps: dict[int, list[tuple[float, int, K]]] = {}
        self._order = itertools.count()
        self._idle = 0
        self.wakeup: Callable[[], None] = lambda: None
        """Called whenever the earliest due time may have moved forward."""

    def add(self, key: K, *, after: float = 0.0) -> None:
        """Make a key due in `after` seconds, or sooner when it already is."""
        entry = self._entries.setdefault(key, _Entry())
        self._schedule(key, entry, max(self._clock() + after, entry.not_before))

    def take(self) -> K | None:
        """The key that is in flight from now on: of the lowest lane that has any the one that has been due for longest."""
        now = self._clock()
        for lane in sorted(self._heaps):
            heap = self._heaps[lane]
            if self._first(heap, now) is None:
                continue
            _, _, key = heapq.heappop(heap)
            entry = self._entries[key]
            entry.due, entry.running = None, True
            entry.not_before = now + self._spacing(key)
            return key
        return None

    def done(self, key: K, *, requeue_after: float | None = None) -> None:
        """The run of a key ended well."""
        entry = self._entries[key]
        entry.running, entry.failures = False, 0
        self._resume(key, entry, None if requeue_after is None else self._clock() + requeue_after)

    def failed(self, key: K, *, retry_after: float | None = None) -> float:
        """The run of a key ended in an error; returns the seconds until it runs again without an event."""
        entry = self._entries[key]
        now = self._clock()
        delay = min(self._limit, self._base * 2.0 ** min(entry.failures, 40)) * self._random.uniform(0.5, 1.0)
        if retry_after is not None:
            delay = retry_after * self._random.uniform(1.0, 1.1)
        entry.running, entry.failures = False, entry.failures + 1
        entry.not_before = max(entry.not_before, now + min(delay, self._impatience))
        self._resume(key, entry, now + delay)
        return delay

    def next_due(self) -> float | None:
        """When the next key is due, on the clock; None when nothing waits."""
        firsts = (self._first(heap, math.inf) for heap in self._heaps.values())
        return min((due for due in firsts if due is not None), default=None)

    def depth(self) -> int:
        """Keys that are due and not in flight. Any thread may ask: metrics are read by that of HTTP."""
        now = self._clock()
        entries = list(self._entries.values())  # at once: the loop adds and drops keys meanwhile
        return sum((due := e.due) is not None and due <= now and not e.running for e in entries)

    def _first(self, heap: list[tuple[float, int, K]], until: float) -> float | None:
        """When the first key of a heap is due, if it is so until then; what was overtaken by another time goes."""
        while heap and heap[0][0] <= until:
            due, _, key = heap[0]
            entry = self._entries.get(key)
            if entry is not None and not entry.running and entry.due == due:
                return due
            heapq.heappop(heap)
        return None

    def _resume(self, key: K, entry: _Entry, due: float | None) -> None:
        times = [time for time in (entry.due, due) if time is not None]
        entry.due = None
        if times:
            self._schedule(key, entry, max(min(times), entry.not_before))
        else:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop keys at rest whose spacing has passed: now and then, so that it costs nothing."""
        self._idle += 1
        if self._idle * 2 < len(self._entries):
            return
        self._idle, now = 0, self._clock()
        for key in [k for k, e in self._entries.items() if e.due is None and not e.running and e.not_before <= now]:
            del self._entries[key]

    def _schedule(self, key: K, entry: _Entry, due: float) -> None:
        if entry.due is not None and entry.due <= due:
            return
        entry.due = due
        if not entry.running:
            heapq.heappush(self._heaps.setdefault(self._lane(key), []), (due, next(self._order), key))
            self.wakeup()
