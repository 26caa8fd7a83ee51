# SPDX-License-Identifier: Apache-2.0
"""Models to workers: the plain rule for what is new, and moves for what is not, where they pay.

The plain rule is longest processing time first: the model that needs most goes next, to the worker that it loads least. Here
the load is the larger of compute and memory. Models that have workers keep them; a local search then moves what relieves the
busier of two workers by more than the hysteresis. The answer is never worse than the plain rule's, and a pack of its own
result changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

from ballast_operator.placement.answering import answer, waiting
from ballast_operator.placement.board import Board
from ballast_operator.placement.easing import Easing
from ballast_operator.placement.improving import Search
from ballast_operator.placement.load import size
from ballast_operator.placement.model import (
    Affinity,
    Assignments,
    ModelDemand,
    MovePrice,
    Packing,
    WorkerCapacity,
    by_demand,
)
from ballast_operator.placement.plain import plain
from ballast_operator.placement.ranking import Rank, crowded, left_out, rank

_FREE: Final = MovePrice()

_ENOUGH: Final = 1.05
"""Up to this factor of what no assignment can go below, fewer reloads count more than a lower peak."""


def pack(
    models: Sequence[ModelDemand],
    workers: Sequence[WorkerCapacity],
    previous: Assignments,
    *,
    hysteresis_percent: int = 10,
    everywhere: bool = False,
    settled: bool = False,
    price: MovePrice = _FREE,
) -> Packing:
    """Assign models to workers; the answer depends on nothing but the arguments, in any order.

    A worker is feasible for a model when pinned weights, code and the largest swapped model fit together; nothing is placed
    elsewhere. Among the feasible ones those that can hold everything at once come first; models for which there are too few
    of these are placed last and marked oversubscribed. The order is falling utilization, falling bytes, name.

    Where moves are free, no answer leaves out more copies than the plain rule, crowds more workers of a pool in which
    everything might fit, or loads the most loaded worker more. Where they are not, that holds as far as the loads pay.

    Args:
        models: At most one of each name.
        workers: At most one of each name; only those that can take models.
        previous: Workers of each model before; workers that are gone are passed over.
        hysteresis_percent: By how much the busier of two workers must be relieved before a model that serves moves, or the
            reloads of a pool must fall; not where the most loaded worker is above the plain rule's.
        everywhere: Every model with at least one replica goes to every worker.
        settled: Models that have their copies stay, unless another would find no room: for new models between two repacks.
        price: What a move costs and how long it has to pay.
    """
    if not workers:
        return waiting(models, previous)
    packer = _Packer(models, workers, everywhere=everywhere, tolerance=1 + hysteresis_percent / 100, price=price)
    best = packer.begin(previous, settled=settled)
    better = packer.roomier if settled else packer.better
    while (other := next(better(best), None)) is not None:
        best = other
    return answer(best, previous)


class _Packer:
    """Assignments of the same models to the same workers, and which is the better one.

    The order of two assignments is (left out, crowded, peak down to what is good enough, reloads), so that a chain of better
    ones ends. At its end none that is made from the last is better: that is why a pack of its own result changes nothing.
    """

    def __init__(
        self,
        models: Sequence[ModelDemand],
        workers: Sequence[WorkerCapacity],
        *,
        everywhere: bool,
        tolerance: float,
        price: MovePrice,
    ) -> None:
        self._models = models
        self._workers = workers
        self._everywhere = everywhere
        self._tolerance = tolerance
        self._price = price

    def begin(self, previous: Assignments, *, settled: bool) -> Board:
        """What there is stays, what is new is placed; then what is overloaded is relieved."""
        board = self._board(previous)
        board.keep()
        self._place(board, by_demand)
        if not settled:
            self._improve(board)
        return board

    def roomier(self, best: Board) -> Iterator[Board]:
        """An assignment with workers for more copies, if there is one."""
        if left_out(best):
            other = self._anew(best)
            if left_out(other) < left_out(best):
                yield other

    def better(self, best: Board) -> Iterator[Board]:
        """Assignments that are better than one, those that move least first; each is made when it is asked for."""
        behind = self._behind(best)
        if behind and self._aim(best) < best.peak:
            other = self._again(best)
            Search(other, tolerance=1.0, price=self._price, aim=self._aim(best)).run()
            self._improve(other)
            if self._relieves(other, best):
                yield other
        if left_out(best) or crowded(best) or best.peak > self._tolerance * best.least_peak:
            other = self._anew(best)
            if self._relieves(other, best):
                yield other
        if behind:
            other = self._again(best, self._plain_board.assignments())
            self._improve(other)
            if self._relieves(other, best):
                yield other
        if best.swapping:
            yield from self._eased(best)

    def _anew(self, best: Board) -> Board:
        """Everything placed anew, on workers of before where that is as good."""
        other = self._board(best.assignments())
        self._place(other, self._by_room if left_out(best) or crowded(best) else by_demand)
        self._improve(other)
        return other

    def _eased(self, best: Board) -> Iterator[Board]:
        """The same with fewer reloads, if they fall by more than the hysteresis at a peak that is good enough."""
        ceiling = max(best.peak, min(min(_ENOUGH, self._tolerance) * best.least_peak, self._aim(best)))
        before = Easing(best, price=self._price, ceiling=ceiling).rate
        other = self._again(best)
        Easing(other, price=self._price, ceiling=ceiling).run()
        other = self._again(other)
        self._improve(other)
        saved = before - Easing(other, price=self._price, ceiling=ceiling).rate
        if (
            other.peak <= ceiling
            and left_out(other) == left_out(best)
            and (before - saved) * self._tolerance < before
            and self._price.pays(self._price.seconds(saved, warm=True), self._seconds(other, best))
        ):
            yield other

    def _board(self, previous: Assignments) -> Board:
        return Board(self._models, self._workers, previous, everywhere=self._everywhere)

    def _again(self, best: Board, assignments: Assignments | None = None) -> Board:
        """The same assignment, or another one, on a board where what serves is what the best one says."""
        other = self._board(best.assignments())
        other.keep() if assignments is None else other.put_all(assignments)
        other.share_out()
        return other

    def _by_room(self, model: ModelDemand) -> tuple[float | str, ...]:
        """Pinned models, and those larger than half the largest worker, before the others, largest first."""
        half = max((worker.capacity_bytes or 0 for worker in self._workers), default=0) / 2 or math.inf
        if model.pinned or size(model) > half:
            return (0, -model.weights_bytes, -model.utilization, model.name)
        return (1, *by_demand(model))

    def _place(self, board: Board, order: Callable[[ModelDemand], tuple[float | str, ...]]) -> None:
        """Give each copy that has no worker one: first those that find a worker with room for everything, then the others."""
        ordered = sorted(self._models, key=order)
        for whole in (True, False):
            for model in ordered:
                for _ in range(board.lacking(model)):
                    load = board.choose(model, tolerance=self._tolerance, whole=whole)
                    if load is None:
                        break
                    board.put(model, load, board.share(model))

    def _improve(self, board: Board) -> None:
        """Search, and use the room that the steps have made for what had none, until neither changes anything."""
        search = Search(board, tolerance=self._tolerance, price=self._price)
        lacking = -1
        while lacking != (left := sum(map(board.lacking, self._models))):
            lacking = left
            board.share_out()
            search.run()
            if lacking:
                self._place(board, by_demand)

    @cached_property
    def _plain_board(self) -> Board:
        board = self._board({})
        board.put_all(plain(self._models, self._workers, everywhere=self._everywhere))
        board.share_out()
        return board

    @cached_property
    def _plain(self) -> Rank:
        return rank(self._plain_board)

    def _behind(self, best: Board) -> bool:
        """Whether the plain rule leaves out less, crowds fewer workers, or has a lower peak; not worked out if it cannot."""
        ours = rank(best)
        return ours > (0, 0, best.least_peak) and self._plain < ours

    def _aim(self, best: Board) -> float:
        """The peak of the plain rule, where it leaves out and crowds as much; else anything will do."""
        return self._plain[2] if self._plain[:2] == rank(best)[:2] else math.inf

    def _relieves(self, other: Board, best: Board) -> bool:
        """Whether an assignment is worth the moves to it.

        It leaves out less, or crowds no worker any more, or lowers the peak by more than the tolerance; or the best one is
        worse than the plain rule, and it is not. Where it is a matter of the peak, that has to pay for the loads.
        """
        ours, theirs = rank(best), rank(other)
        if theirs[0] != ours[0]:
            return theirs[0] < ours[0]
        catches_up = theirs < ours and self._behind(best) and theirs <= self._plain
        if theirs[1] != ours[1]:
            return not theirs[1] or catches_up
        if not catches_up and max(other.peak, best.least_peak) * self._tolerance >= best.peak:
            return False
        return self._price.pays((best.peak - other.peak) / best.loads[0].compute_unit, self._seconds(other, best))

    def _seconds(self, other: Board, best: Board) -> float:
        """What the loads cost that lead from one assignment to another."""
        return math.fsum(
            self._price.seconds(model.weights_bytes, warm=best.affinity(name, load) is not Affinity.NONE)
            for load in other.loads
            for name, (model, _) in load.models.items()
            if load.index not in best.placed[name]
        )
