# SPDX-License-Identifier: Apache-2.0
"""Local search on a finished assignment: single moves and exchanges that relieve the busier of two workers.

The greedy rule never looks back: three models of 3, 3, 2, 2 and 2 on two workers become 7 and 5. A move or an exchange is
made where the busier of the two workers is less loaded after it, by more than the hysteresis and worth its loads where it
displaces a model that serves; with an aim, by anything, as long as the busier worker is above the aim. Every step lowers the
larger of two scores, or ends the crowding of a worker and begins none, so the search ends, and at its end no step is left: a
search that begins there changes nothing (the jump and swap neighbourhoods of P. Schuurman and T. Vredeveld, Performance
guarantees of local search for multiprocessor scheduling, INFORMS J. Comput. 19, 2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

from ballast_operator.placement.board import Board
from ballast_operator.placement.load import Load, size
from ballast_operator.placement.model import Affinity, ModelDemand, MovePrice

_PARTNERS: Final = 12
"""Least loaded workers that are tried as the other side of a step."""

_TOP: Final = 8
"""Most loaded workers for which everything is tried; of the others those above the average, and only moves."""

_GOOD: Final = 1.02
"""Up to this factor of what no assignment can go below, exchanges are not tried."""

_ROUNDS: Final = 50
"""Most passes over the workers: what is left then is left to the next repack."""

_LEAST_GAIN: Final = 1.01
"""By what factor the busier worker has to be better before anything is changed."""

_Key = tuple[int, float, int, str, int, str]
"""Workers that are crowded more (negative: fewer), the higher score of both, bytes loaded, and names that break ties."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A model that leaves a worker for another, and what comes back for it, if anything does."""

    model: ModelDemand
    target: Load
    back: ModelDemand | None = None


class Search:
    """The search on one board.

    Args:
        board: The assignment, changed in place.
        tolerance: By what factor the busier worker has to be better before a model that serves moves.
        price: What loads cost.
        aim: A score that is sought for every worker, in few steps: those at or below it are left alone.
    """

    def __init__(self, board: Board, *, tolerance: float, price: MovePrice, aim: float = 0.0) -> None:
        self._board = board
        self._least = 1.0 if aim else _LEAST_GAIN
        self._tolerance = max(tolerance, self._least)
        self._price = price
        self._aim = aim

    def run(self) -> None:
        """Make steps until none is left."""
        for _ in range(_ROUNDS):
            made = 0
            ordered = self._board.most_loaded()
            good = self._aim or _GOOD * self._board.least_peak
            limit = self._tolerance * sum(load.score for load in ordered) / len(ordered)
            for place, load in enumerate(ordered):
                if place >= _TOP and load.score <= limit and not (load.crowded and self._board.mean_memory <= 1):
                    continue
                if load.score <= self._aim or self._irreducible(load):
                    continue
                while (step := self._best(load, exchanging=place < _TOP and load.score > good)) is not None:
                    self._make(load, step)
                    made += 1
            if not made:
                return

    def _irreducible(self, load: Load) -> bool:
        """Whether one model is nearly all of the load, in a pool where memory beside it is of use to others."""
        largest = max((share for _, share in load.models.values()), default=0.0) * load.compute_unit
        return self._board.swapping and load.score <= largest * self._tolerance

    def _make(self, source: Load, step: _Step) -> None:
        board = self._board
        for model, start, end in ((step.model, source, step.target), (step.back, step.target, source)):
            if model is not None:
                share = start.models[model.name][1]
                board.take(model, start)
                board.put(model, end, share)

    def _best(self, source: Load, *, exchanging: bool) -> _Step | None:
        partners = [
            load
            for load in islice(self._board.least_loaded(memory=source.memory_bound), _PARTNERS)
            if load.index != source.index and (source.crowded or load.score * self._least < source.score)
        ]
        if not partners:
            return None
        return self._best_move(source, partners) or (self._best_exchange(source, partners) if exchanging else None)

    def _best_move(self, source: Load, partners: list[Load]) -> _Step | None:
        best: tuple[_Key, _Step] | None = None
        for model, share in source.models.values():
            nbytes = size(model)
            left = source.with_change(-share, -nbytes)
            for target in partners:
                if model.name in target.models:
                    continue
                there = target.with_change(share, nbytes)
                higher = max(left, there)
                crowding = self._crowding(source, target, nbytes)
                key = (crowding, max(higher, self._aim), nbytes, model.name, target.index, "")
                if (not crowding and higher >= source.score) or (best is not None and key >= best[0]):
                    continue
                step = [(model, source, target)]
                if target.feasible(model) and self._worth(source, there, higher, crowding, step):
                    best = key, _Step(model, target)
        return None if best is None else best[1]

    def _best_exchange(self, source: Load, partners: list[Load]) -> _Step | None:
        best: tuple[_Key, _Step] | None = None
        limit = source.score / self._least
        for target in partners:
            for model, back in _relieving(source, target, limit):
                if model.name in target.models or back.name in source.models:
                    continue
                share, held = source.models[model.name][1] - target.models[back.name][1], size(model) - size(back)
                higher = max(source.with_change(-share, -held), target.with_change(share, held))
                crowding = self._crowding(source, target, held)
                key = (crowding, max(higher, self._aim), size(model) + size(back), model.name, target.index, back.name)
                if best is not None and key >= best[0]:
                    continue
                if (
                    self._worth(source, higher, higher, crowding, [(model, source, target), (back, target, source)])
                    and source.feasible(back, without=model)
                    and target.feasible(model, without=back)
                ):
                    best = key, _Step(model, target, back)
        return None if best is None else best[1]

    def _crowding(self, source: Load, target: Load, nbytes: int) -> int:
        """Whether so many bytes that change sides end the crowding of one worker (-1), crowd one (1), or neither (0).

        In a pool whose models cannot all fit at once that is no aim: there the scores alone count.
        """
        if self._board.mean_memory > 1:
            return 0
        if any(load.overflows(more) and not load.crowded for load, more in ((source, -nbytes), (target, nbytes))):
            return 1
        return -1 if source.crowded and not source.overflows(-nbytes) and not target.crowded else 0

    def _worth(
        self, source: Load, there: float, higher: float, crowding: int, steps: list[tuple[ModelDemand, Load, Load]]
    ) -> bool:
        """Whether a step is an improvement, and one that pays where it displaces a model that serves.

        `there` is what the model would find, `higher` the score of the busier worker after the step.
        """
        if crowding:
            return crowding < 0
        displaced = [step for step in steps if step[1].index in self._board.incumbents.get(step[0].name, ())]
        if there * (self._tolerance if displaced else self._least) >= source.score:
            return False
        seconds = sum(
            self._price.seconds(model.weights_bytes, warm=self._board.affinity(model.name, end) is not Affinity.NONE)
            for model, _, end in displaced
        )
        return self._price.pays((source.score - higher) / source.compute_unit, seconds)


def _relieving(source: Load, target: Load, limit: float) -> list[tuple[ModelDemand, ModelDemand]]:
    """Pairs whose exchange leaves both workers below a score; plain arithmetic, because there are very many."""
    source_compute, source_memory = (
        limit / source.compute_unit,
        limit / source.memory_unit if source.memory_unit else inf,
    )
    target_compute, target_memory = (
        limit / target.compute_unit,
        limit / target.memory_unit if target.memory_unit else inf,
    )
    least_share, least_held = source.compute - source_compute, source.held - source_memory
    most_share, most_held = target_compute - target.compute, target_memory - target.held
    backs = [(back, share, size(back)) for back, share in target.models.values()]
    return [
        (model, back)
        for model, share in source.models.values()
        for nbytes in (size(model),)
        for back, back_share, back_bytes in backs
        if least_share <= share - back_share <= most_share and least_held <= nbytes - back_bytes <= most_held
    ]
