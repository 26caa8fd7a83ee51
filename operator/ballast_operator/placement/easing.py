# SPDX-License-Identifier: Apache-2.0
"""Local search for fewer reloads, in a pool whose models cannot all fit at once.

What counts there is not how many bytes a worker has but how often they are loaded: a few models that are called all the time
do best where all of them fit, and those that are called seldom lose little by sharing a device. A step moves a model, or
exchanges two, where the calls of both workers then wait for fewer bytes and neither worker is loaded above a ceiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations
from operator import itemgetter
from typing import Final

from ballast_operator.placement.board import Board
from ballast_operator.placement.load import Load, size
from ballast_operator.placement.model import Affinity, ModelDemand, MovePrice
from ballast_operator.placement.reloads import Reloads, reloads_of

_TRIED: Final = 4
"""Steps between two workers that are worked out: those whose estimates are best."""

_OPTIONS: Final = 24
"""Models of each of two workers that may change sides: those whose estimates are best."""

_ROUNDS: Final = 20
"""Most passes over the pairs of workers."""

_LEAST_GAIN: Final = 1.01
"""By what factor the reloads of two workers have to fall before anything is changed."""

_Option = tuple[float, float, int, str, ModelDemand | None]
"""What may change sides: by how much the reloads change by an estimate, compute, bytes, its name, and the model."""

_NOTHING: Final[_Option] = (0.0, 0.0, 0, "", None)


@dataclass(frozen=True, slots=True)
class _Step:
    """A model that leaves a worker for another, and one that comes back; either may be missing. And the reloads then."""

    going: ModelDemand | None
    coming: ModelDemand | None
    here: Reloads
    there: Reloads


class Easing:
    """The search on one board.

    Args:
        board: The assignment, changed in place. Models move for nothing where the board says that they did not serve.
        price: What loads cost.
        ceiling: The score up to which a worker may be loaded.
    """

    def __init__(self, board: Board, *, price: MovePrice, ceiling: float) -> None:
        self._board = board
        self._price = price
        self._ceiling = ceiling
        self._reloads = [reloads_of(load, board.calls) for load in board.loads]

    @property
    def rate(self) -> float:
        """Bytes per second that calls wait for, on all workers."""
        return sum(reloads.rate for reloads in self._reloads)

    def run(self) -> None:
        """Make steps until none is left."""
        stale = {load.index for load in self._board.loads}
        for _ in range(_ROUNDS):
            changed: set[int] = set()
            for source, target in combinations(self._board.loads, 2):
                if stale & {source.index, target.index} or changed & {source.index, target.index}:
                    while (step := self._best(source, target)) is not None:
                        self._make(source, target, step)
                        changed |= {source.index, target.index}
            if not changed:
                return
            stale = changed

    def _make(self, source: Load, target: Load, step: _Step) -> None:
        for model, start, end in ((step.going, source, target), (step.coming, target, source)):
            if model is not None:
                share = start.models[model.name][1]
                self._board.take(model, start)
                self._board.put(model, end, share)
        self._reloads[source.index], self._reloads[target.index] = step.here, step.there

    def _best(self, source: Load, target: Load) -> _Step | None:
        """The step between two workers that saves most."""
        before = self._reloads[source.index].rate + self._reloads[target.index].rate
        best: _Step | None = None
        most = 0.0
        if before:
            for step in self._steps(source, target):
                saved = before - step.here.rate - step.there.rate
                if saved > most and self._worth(source, target, step, before, saved):
                    best, most = step, saved
        return best

    def _steps(self, source: Load, target: Load) -> Iterator[_Step]:
        """The most promising steps between two workers."""
        highest = max(self._ceiling / source.compute_unit, source.compute, target.compute)
        least, most = source.compute - highest, highest - target.compute
        backs = self._options(target, source)
        promising = [
            (gain + back_gain, nbytes + back_bytes, name, back, going, coming)
            for gain, share, nbytes, name, going in self._options(source, target)
            for back_gain, back_share, back_bytes, back, coming in backs
            if gain + back_gain < 0 and least <= share - back_share <= most
        ]
        for *_, going, coming in nsmallest(_TRIED, promising, key=itemgetter(0, 1, 2, 3)):
            if (going is None or target.feasible(going, without=coming)) and (
                coming is None or source.feasible(coming, without=going)
            ):
                here = reloads_of(source, self._board.calls, without=going, model=coming)
                there = reloads_of(target, self._board.calls, without=coming, model=going)
                yield _Step(going, coming, here, there)

    def _options(self, start: Load, end: Load) -> list[_Option]:
        here, there = self._reloads[start.index], self._reloads[end.index]
        found: list[_Option] = []
        for name, (model, share) in start.models.items():
            if name not in end.models:
                calls = self._board.calls(model)
                gain = there.brought(model, calls) - here.brought(model, calls)
                found.append((gain, share, size(model), name, model))
        return [_NOTHING, *nsmallest(_OPTIONS, found, key=itemgetter(0, 2, 3))]

    def _worth(self, source: Load, target: Load, step: _Step, before: float, saved: float) -> bool:
        """Whether a step saves enough, and pays for the loads of models that served elsewhere when the search began."""
        if (before - saved) * _LEAST_GAIN >= before:
            return False
        board = self._board
        seconds = sum(
            self._price.seconds(model.weights_bytes, warm=board.affinity(model.name, end) is not Affinity.NONE)
            for model, start, end in ((step.going, source, target), (step.coming, target, source))
            if model is not None and start.index in board.incumbents.get(model.name, ())
        )
        return self._price.pays(self._price.seconds(saved, warm=True), seconds)
