# SPDX-License-Identifier: Apache-2.0
"""What a resident model is worth: the reload seconds that a byte of it is expected to save in the next second.

    value = reload seconds / bytes x (1 + uses) / idle seconds

Cost, size and frequency are those of GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998). The value ages with one over
the time, as in hyperbolic caching (Blankstein, Sen and Freedman, USENIX ATC 2017), counted from the last use: models are
called in bursts, and the longer one was silent, the longer it will go on to be. An exponential would have to know how long
the bursts are. Uses fade too, so that what was popular yesterday does not stay for it.
"""

from __future__ import annotations

import math

USES_HALF_LIFE_SECONDS = 300.0
"""After so long a use counts half."""

SHORTEST_IDLE_SECONDS = 0.01
"""Of models that were used so short a time ago none is more recent than the others."""

RESIDENCE_FACTOR = 2.0
"""Minimum residence of a model that was loaded for a request, in load times, from its first execution on. Two models
that do not fit together then spend at most a third of the time on loads, however their requests alternate, and a closed
loop of one client gets many answers from each load."""

MAX_RESIDENCE_SECONDS = 5.0
"""Longest minimum residence, and so the longest that a load waits for one."""

SHORTEST_RELOAD_SECONDS = 1e-6
"""A reload that was too short for the clock still costs something."""


def key(*, reload_seconds: float, nbytes: int, uses: float, idle_seconds: float) -> float:
    """The value's logarithm, in powers of two; the lowest goes first.

    Args:
        reload_seconds: what a reload is expected to take.
        nbytes: what an eviction would free.
        uses: executions of the model, each faded up to the last one. One more is counted, for which it was loaded.
        idle_seconds: since the last execution, or the load.
    """
    cost = max(reload_seconds, SHORTEST_RELOAD_SECONDS) / max(nbytes, 1)
    return math.log2(cost * (1.0 + uses) / max(idle_seconds, SHORTEST_IDLE_SECONDS))


def faded(uses: float, seconds: float) -> float:
    """What uses count after so many seconds."""
    return uses * math.exp2(-seconds / USES_HALF_LIFE_SECONDS)


def minimum_residence(reload_seconds: float) -> float:
    """Seconds for which a model stays, counted from its first execution after a load that took `reload_seconds`."""
    return min(RESIDENCE_FACTOR * reload_seconds, MAX_RESIDENCE_SECONDS)
