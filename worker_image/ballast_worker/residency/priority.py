# SPDX-License-Identifier: Apache-2.0
"""What a resident model is worth: GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998), aged by idle time.

    value = reload seconds / bytes x uses since load x 2 ^ (-(now - last use) / half-life)

All values fade by the same factor, so their order changes only when a model is used. What is kept is therefore not the
value but the part of its logarithm that does not depend on `now`:

    key = log2(reload seconds / bytes x uses) + last use / half-life

`key - now / half-life` is the logarithm of the value at any time, and comparing keys compares values.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

HALF_LIFE_SECONDS = 300.0
"""Idle time after which a model is worth half as much as before: frequency counts for minutes, recency beyond."""

RESIDENCE_FACTOR = 2.0
"""Minimum residence of a model that was loaded for a request, in load times, from its first execution on. Two models
that do not fit together then spend at most a third of the time on loads, however their requests alternate, and a closed
loop of one client gets many answers from each load."""

MAX_RESIDENCE_SECONDS = 5.0
"""Longest minimum residence, and so the longest that a load waits for one."""

SHORTEST_RELOAD_SECONDS = 1e-6
"""A reload that was too short for the clock still costs something."""


def key(*, reload_seconds: float, nbytes: int, dispatches: int, last_use: float) -> float:
    """The key of a model, in powers of two; the lowest goes first.

    Args:
        reload_seconds: what a reload is expected to take.
        nbytes: what an eviction would free.
        dispatches: executions since the load. The load was for one use itself, so that a model that has just been
            loaded is worth something before its first execution.
        last_use: end of the last execution, or of the load, on a monotonic clock in seconds.
    """
    value = max(reload_seconds, SHORTEST_RELOAD_SECONDS) / max(nbytes, 1) * (1 + dispatches)
    return math.log2(value) + last_use / HALF_LIFE_SECONDS


def minimum_residence(reload_seconds: float) -> float:
    """Seconds for which a model stays, counted from its first execution after a load that took `reload_seconds`."""
    return min(RESIDENCE_FACTOR * reload_seconds, MAX_RESIDENCE_SECONDS)


def value_at(key: float, now: float) -> float:
    """Seconds of reload per byte that a key stands for at the time `now`; 0.0 where it has faded beyond floats."""
    return math.exp2(min(key - now / HALF_LIFE_SECONDS, 1000.0))


class PriorityOrder:
    """Names in rising order of their keys; equal keys in order of their last `set`, so the least recently used first.

    A `set` costs a binary search and moves pointers; iterating allocates nothing.
    """

    def __init__(self) -> None:
        # _entries is sorted; _keys has the entry of each name in it, and nothing else.
        self._entries: list[tuple[float, int, str]] = []
        self._keys: dict[str, tuple[float, int, str]] = {}
        self._sets = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return (name for _, _, name in self._entries)

    def set(self, name: str, key: float) -> None:
        """Put a name where its key belongs, whether or not it is there already."""
        self.discard(name)
        self._sets += 1
        entry = self._keys[name] = (key, self._sets, name)
        insort(self._entries, entry)

    def discard(self, name: str) -> None:
        """Take a name out, if it is there."""
        entry = self._keys.pop(name, None)
        if entry is not None:
            del self._entries[bisect_left(self._entries, entry)]

    def key(self, name: str) -> float:
        """The key of a name that is there."""
        return self._keys[name][0]
