# SPDX-License-Identifier: Apache-2.0
"""How many bytes a worker loads for calls where its models take turns on the device. Pure.

The approximation of H. Che, Y. Tung and Z. Wang, Hierarchical web caching systems, IEEE JSAC 20(7), 2002: with independent
calls, a model that is called at rate r is gone again with probability exp(-r T), where T is the time in which the calls bring
as many bytes as there is room for. It holds for items of different sizes (C. Fricker, P. Robert and J. Roberts, A versatile
and accurate approximation for LRU cache performance, ITC 24, 2012); where there is room for few, half of what is loaded
stays free on the average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Final

from ballast_operator.placement.load import Load, size
from ballast_operator.placement.model import ModelDemand

_STEPS: Final = 30
_CLOSE: Final = 1e-4
"""Share of the room to which what is on the device is worked out."""

Swapped = Sequence[tuple[float, int]]
"""Calls per second and bytes of each model that is swapped and called."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """What calls wait for on one worker.

    Args:
        rate: Bytes per second that are loaded.
        seconds: How long a model stays without a call; infinite where all fit.
        marginal: Bytes per second more for each byte of room less.
    """

    rate: float = 0.0
    seconds: float = inf
    marginal: float = 0.0

    def brought(self, model: ModelDemand, calls: float) -> float:
        """Bytes per second that one model brings: its own, and those of the models that it displaces. An estimate."""
        if model.pinned:
            return self.marginal * size(model)
        gone = exp(-calls * self.seconds) if calls else 1.0
        here = model.code_bytes + model.weights_bytes * (1 - gone)
        return calls * model.weights_bytes * gone + self.marginal * here


def expected(swapped: Swapped, room: int) -> Reloads:
    """The reloads of models that share so many bytes of a device."""
    if sum(nbytes for _, nbytes in swapped) <= room:
        return Reloads()
    first = _at(swapped, _seconds(swapped, room, begin=0.0))
    if not first.rate:
        return first
    half = sum(rate * nbytes * nbytes * exp(-rate * first.seconds) for rate, nbytes in swapped) / first.rate / 2
    return _at(swapped, _seconds(swapped, room - half, begin=first.seconds))


def reloads_of(
    load: Load,
    calls: Callable[[ModelDemand], float],
    *,
    without: ModelDemand | None = None,
    model: ModelDemand | None = None,
) -> Reloads:
    """The reloads of a worker with one model less and another more; none while its capacity is not known.

    Args:
        load: The worker.
        calls: Calls per second of each copy of a model.
        without: A model that is there and would not be.
        model: A model that is not there and would be.
    """
    if load.capacity is None:
        return Reloads()
    here = [one for one, _ in load.models.values() if one is not without]
    if model is not None:
        here.append(model)
    room = load.capacity - sum(one.code_bytes + (one.weights_bytes if one.pinned else 0) for one in here)
    return expected(sorted((calls(one), one.weights_bytes) for one in here if one.rate and not one.pinned), room)


def _seconds(swapped: Swapped, room: float, *, begin: float) -> float:
    """The root of a concave rising function by Newton's rule: whatever it begins with, it comes from below after a step."""
    if room <= 0:
        return 0.0
    seconds = begin
    for _ in range(_STEPS):
        filled = slope = 0.0
        for rate, nbytes in swapped:
            gone = nbytes * exp(-rate * seconds)
            filled += nbytes - gone
            slope += rate * gone
        lacking = room - filled
        if abs(lacking) <= _CLOSE * room or not slope:
            break
        seconds = max(0.0, seconds + lacking / slope)
    return seconds


def _at(swapped: Swapped, seconds: float) -> Reloads:
    rate = second = 0.0
    for calls, nbytes in swapped:
        lost = calls * nbytes * exp(-calls * seconds)
        rate += lost
        second += calls * lost
    return Reloads(rate, seconds, second / rate if rate else 0.0)
