# SPDX-License-Identifier: Apache-2.0
"""Models to workers: the longest processing time first rule for what is new, and moves for what is not, where they pay.

Longest processing time first is Graham's greedy bound for makespan (R. L. Graham, Bounds on multiprocessing timing anomalies,
SIAM J. Appl. Math. 17, 1969): the model that needs most goes next, to the worker that it loads least. Here the load is the
larger of compute and memory. Models that have workers keep them; a local search then moves what relieves the busier of two
workers by more than the hysteresis. A pack of its own result changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from ballast_contract.reasons import Reason
from ballast_operator.placement.board import Board
from ballast_operator.placement.improving import Search
from ballast_operator.placement.load import crowding, shortage, size
from ballast_operator.placement.model import Affinity, ModelDemand, ModelPlacement, MovePrice, Packing, WorkerCapacity

_FREE: Final = MovePrice()


def pack(
    models: Sequence[ModelDemand],
    workers: Sequence[WorkerCapacity],
    previous: Mapping[str, tuple[str, ...]],
    *,
    hysteresis_percent: int = 10,
    mode: Literal["packed", "all"] = "packed",
    settled: bool = False,
    price: MovePrice = _FREE,
) -> Packing:
    """Assign models to workers; the answer depends on nothing but the arguments, in any order.

    A worker is feasible for a model when pinned weights, code and the largest swapped model fit together; nothing is placed
    elsewhere. Among the feasible ones those that can hold everything at once come first; models for which there are too few
    of these are placed last and marked oversubscribed. The order is falling utilization, falling bytes, name. Where that
    order leaves something without a worker, everything is placed anew with what needs much room of its own first; where the
    moves end above what placing anew reaches by more than the hysteresis, that is taken.

    Args:
        models: At most one of each name.
        workers: At most one of each name; only those that can take models.
        previous: Workers of each model before; workers that are gone are passed over.
        hysteresis_percent: By how much the busier of two workers must be relieved before a model that serves moves.
        mode: `all` puts every model with at least one replica on every worker.
        settled: Models that have their copies stay, unless another would find no room: for new models between two repacks.
        price: What a move costs and how long it has to pay.
    """
    if not workers:
        return _waiting(models, previous)
    tolerance = 1 + hysteresis_percent / 100

    def board(before: Mapping[str, tuple[str, ...]]) -> Board:
        return Board(models, workers, before, everywhere=mode == "all")

    best = board(previous)
    _keep(best)
    _place(best, sorted(models, key=_by_demand), tolerance=tolerance)
    if not settled:
        _improve(best, tolerance=tolerance, price=price)
    while _left_out(best) or not (settled or _good(best, tolerance)):
        other = board(best.assignments())
        order = _by_room(workers) if _left_out(best) or _needlessly_crowded(best) else _by_demand
        _place(other, sorted(models, key=order), tolerance=tolerance)
        _improve(other, tolerance=tolerance, price=price)
        if not _better(other, best, tolerance=tolerance, price=price):
            break
        best = other
    return _answer(best, previous)


def _by_demand(model: ModelDemand) -> tuple[float, float, str]:
    return -model.utilization, -model.weights_bytes, model.name


def _by_room(workers: Sequence[WorkerCapacity]) -> Callable[[ModelDemand], tuple[float | str, ...]]:
    """Pinned models, and those larger than half the largest worker, before the others, largest first."""
    half = max((worker.capacity_bytes or 0 for worker in workers), default=0) / 2 or math.inf

    def key(model: ModelDemand) -> tuple[float | str, ...]:
        if model.pinned or size(model) > half:
            return (0, -model.weights_bytes, -model.utilization, model.name)
        return (1, *_by_demand(model))

    return key


def _keep(board: Board) -> None:
    """Leave every copy where it is, as far as it may stay there; of too many those on the first workers."""
    for model in sorted(board.models.values(), key=lambda model: (not model.pinned, *_by_demand(model))):
        share, wanted = board.share(model), board.wanted[model.name]
        for index in board.incumbents.get(model.name, ())[:wanted]:
            if board.loads[index].feasible(model):
                board.put(model, board.loads[index], share)


def _place(board: Board, ordered: Sequence[ModelDemand], *, tolerance: float) -> None:
    """Give each copy that has no worker one: first those that find a worker with room for everything, then the others."""
    for whole in (True, False):
        for model in ordered:
            for _ in range(board.lacking(model)):
                load = board.choose(model, tolerance=tolerance, whole=whole)
                if load is None:
                    break
                board.put(model, load, board.share(model))


def _improve(board: Board, *, tolerance: float, price: MovePrice) -> None:
    """Search, and use the room that the steps have made for what had none, until neither changes anything."""
    ordered = sorted(board.models.values(), key=_by_demand)
    search = Search(board, tolerance=tolerance, price=price)
    lacking = -1
    while lacking != (left := sum(map(board.lacking, ordered))):
        lacking = left
        _share_out(board)
        search.run()
        if lacking:
            _place(board, ordered, tolerance=tolerance)


def _share_out(board: Board) -> None:
    """The copies that there are bear what the missing ones would."""
    for name, here in board.placed.items():
        model = board.models[name]
        if here and board.lacking(model):
            share = model.utilization / len(here)
            for load in [board.loads[index] for index in here]:
                board.take(model, load)
                board.put(model, load, share)


def _left_out(board: Board) -> int:
    """Copies without a worker that an empty one could take."""
    largest = max((math.inf if load.capacity is None else load.capacity for load in board.loads), default=0)
    return sum(board.lacking(model) for model in board.models.values() if size(model) <= largest)


def _needlessly_crowded(board: Board) -> int:
    """Crowded workers of a pool whose models might all fit."""
    return sum(load.crowded for load in board.loads) if board.mean_memory <= 1 else 0


def _peak(board: Board) -> float:
    return max(load.score for load in board.loads)


def _good(board: Board, tolerance: float) -> bool:
    """Whether no assignment can be better than this one by more than the tolerance."""
    return not _needlessly_crowded(board) and _peak(board) <= tolerance * board.least_peak


def _better(other: Board, best: Board, *, tolerance: float, price: MovePrice) -> bool:
    """Whether an assignment that was made anew is worth it.

    It gives more copies a worker, or crowds no worker any more, or relieves the most loaded one by more than the tolerance
    and pays for its loads.
    """
    if (left := _left_out(other)) != _left_out(best):
        return left < _left_out(best)
    if _needlessly_crowded(other) != _needlessly_crowded(best):
        return _needlessly_crowded(other) == 0
    if _peak(other) * tolerance >= _peak(best):
        return False
    seconds = [
        sum(
            price.seconds(model.weights_bytes, warm=best.affinity(name, load) is not Affinity.NONE)
            for name, (model, _) in load.models.items()
            if load.index not in best.placed[name]
        )
        for load in other.loads
    ]
    return price.pays((_peak(best) - _peak(other)) / best.loads[0].compute_unit, sum(seconds))


def _answer(board: Board, previous: Mapping[str, tuple[str, ...]]) -> Packing:
    placements = {name: _placement(board, board.models[name]) for name in sorted(board.models)}
    now = {name: set(workers) for name, workers in board.assignments().items()}
    before = {name: set(workers) for name, workers in previous.items() if workers}
    differing = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    changed = {worker for name in differing for worker in now.get(name, set()) ^ before.get(name, set())}
    return Packing(
        placements=placements,
        loads={load.name: load.report() for load in board.loads},
        moved=tuple(sorted(differing & now.keys() & before.keys())),
        changed_workers=tuple(sorted(changed)),
    )


def _placement(board: Board, model: ModelDemand) -> ModelPlacement:
    chosen = [board.loads[index] for index in board.placed[model.name]]
    wanted, missing = board.wanted[model.name], board.lacking(model)
    crowded = None if model.pinned else next((load for load in chosen if load.crowded), None)
    if missing:
        others = [load for load in board.loads if model.name not in load.models]
        message = shortage(model, others, placed=len(chosen), wanted=wanted)
    else:
        message = crowding(model, crowded) if crowded else ""
    return ModelPlacement(
        workers=tuple(load.name for load in chosen),
        wanted=wanted,
        share=model.utilization / len(chosen) if chosen else 0.0,
        oversubscribed=crowded is not None,
        reason=Reason.INSUFFICIENT_DEVICE_MEMORY if missing else None,
        message=message,
    )


def _waiting(models: Sequence[ModelDemand], previous: Mapping[str, tuple[str, ...]]) -> Packing:
    """The answer where no worker can take models."""

    def placement(model: ModelDemand) -> ModelPlacement:
        if model.replicas <= 0:
            return ModelPlacement(workers=(), wanted=0)
        message = f"{model.called} waits: the pool has no worker that can take models"
        return ModelPlacement(workers=(), wanted=0, reason=Reason.WORKERS_STARTING, message=message)

    return Packing(
        placements={model.name: placement(model) for model in sorted(models, key=lambda model: model.name)},
        loads={},
        moved=(),
        changed_workers=tuple(sorted({worker for workers in previous.values() for worker in workers})),
    )
