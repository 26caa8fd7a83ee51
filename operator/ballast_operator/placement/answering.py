# SPDX-License-Identifier: Apache-2.0
"""The answer of a pack: where each model goes, what is lacking for it, and how that differs from before."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_contract.reasons import Reason
from ballast_operator.placement.board import Board
from ballast_operator.placement.load import crowding, shortage
from ballast_operator.placement.model import Assignments, ModelDemand, ModelPlacement, Packing


def answer(board: Board, previous: Assignments) -> Packing:
    """What is on a board."""
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
        oversubscribed=crowded is not None,
        reason=Reason.INSUFFICIENT_DEVICE_MEMORY if missing else None,
        message=message,
    )


def waiting(models: Sequence[ModelDemand], previous: Assignments) -> Packing:
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
