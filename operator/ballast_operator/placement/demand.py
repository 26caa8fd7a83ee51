# SPDX-License-Identifier: Apache-2.0
"""How much device time each model asks for: counters of the workers, folded into rates that fade with use, not with time.

Rates are smoothed by fleet compute-seconds: an idle pool keeps what it knows, a busy one learns quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WorkerModel = tuple[str, str]
"""Worker instance and model."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What one worker process has counted of one model since it started."""

    requests: int
    compute_seconds: float


@dataclass(frozen=True, slots=True)
class Demand:
    """A model's smoothed demand.

    Args:
        rate: Requests per second.
        cost: Device seconds per request; None until a request was measured.
        weight: What all windows so far weigh together; it comes near 1 with time, and is 0 before the first.
    """

    rate: float
    cost: float | None
    weight: float = 1.0

    @property
    def utilization(self) -> float:
        """Device seconds per second; 0.0 while the cost is not known."""
        return self.rate * self.cost if self.cost is not None else 0.0


_UNKNOWN: Final = Demand(0.0, None, 0.0)


def since(before: Mapping[WorkerModel, Counters], now: Mapping[WorkerModel, Counters]) -> dict[str, Counters]:
    """What each model was counted between two readings, over all workers.

    A counter that fell belongs to a worker that started again: its reading becomes the base and counts for nothing, and
    so does the first reading of a worker.
    """
    total: dict[str, Counters] = {}
    for key, counters in now.items():
        base = before.get(key, counters)
        requests = counters.requests - base.requests
        seconds = counters.compute_seconds - base.compute_seconds
        if requests < 0 or seconds < 0:
            requests, seconds = 0, 0.0
        seen = total.get(key[1], Counters(0, 0.0))
        total[key[1]] = Counters(seen.requests + requests, seen.compute_seconds + seconds)
    return total


def fold(
    known: Mapping[str, Demand],
    counted: Mapping[str, Counters],
    *,
    elapsed_seconds: float,
    half_life_compute_seconds: float,
) -> dict[str, Demand]:
    """The demand of each counted model after a window; models that are not counted any more are forgotten.

    Args:
        known: The demand before the window.
        counted: The window, from `since`.
        elapsed_seconds: Wall seconds of the window.
        half_life_compute_seconds: Fleet compute-seconds after which a sample weighs as much as all before it.
    """
    spent = sum(counters.compute_seconds for counters in counted.values())
    weight = 1 - 2 ** (-spent / half_life_compute_seconds)
    return {
        model: _fold_one(known.get(model, _UNKNOWN), counters, weight=weight, elapsed_seconds=elapsed_seconds)
        for model, counters in counted.items()
    }


def _fold_one(old: Demand, counters: Counters, *, weight: float, elapsed_seconds: float) -> Demand:
    """A mean over all windows: what weighs little yet, because it is new, is not taken for little demand."""
    total = blend(old.weight, 1.0, weight)
    share = weight / total if total else 0.0
    rate = blend(old.rate, counters.requests / elapsed_seconds, share) if elapsed_seconds > 0 else old.rate
    if counters.requests == 0:
        return Demand(rate, old.cost, total)
    cost = counters.compute_seconds / counters.requests
    return Demand(rate, cost if old.cost is None else blend(old.cost, cost, share), total)


def blend(old: float, sample: float, weight: float) -> float:
    """The exponentially weighted mean after one more sample."""
    return old + weight * (sample - old)
