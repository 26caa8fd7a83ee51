# SPDX-License-Identifier: Apache-2.0
"""Why a model is where it is: what each worker would be with it, and what would have to change for it to go there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballast_contract import quantities
from ballast_operator.placement.board import Board
from ballast_operator.placement.load import Load, size
from ballast_operator.placement.model import Affinity, Assignments, ModelDemand, MovePrice, Packed
from ballast_operator.placement.reloads import reloads_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker with the model on it, everything else being where it is.

    Args:
        score: The larger of compute and memory, as multiples of an even spread where the pool's models cannot all fit at once;
            of compute alone where reloads are estimated.
        compute: Device seconds per second.
        held_bytes: Weights and code.
        capacity_bytes: What there is for them; None while not known.
        feasible: Pinned weights, code and the largest swapped model fit together; without that nothing is placed there.
        fits: Everything on it would be on the device at once.
        reload_bytes_per_second: What the calls of the worker's models would wait for, by an estimate; None where everything
            might fit, or the calls are not known.
        load_seconds: What bringing the model there costs; 0.0 where it is, and while no load was measured.
        chosen: The model is there.
        needs: What would have to change for the model to go there, or for it to leave; a sentence.
    """

    worker: str
    node: str
    score: float
    compute: float
    held_bytes: int
    capacity_bytes: int | None
    feasible: bool
    fits: bool
    affinity: Affinity
    reload_bytes_per_second: float | None
    load_seconds: float
    chosen: bool
    needs: str


def explain(name: str, packed: Packed, assignments: Assignments) -> list[Candidate]:
    """Every worker as a candidate for a model of a pack, those that have it first, then by score.

    Args:
        name: The model, one of those that were packed.
        packed: What was packed.
        assignments: Where every model is.
    """
    board = Board(packed.models, packed.workers, assignments, everywhere=packed.everywhere)
    for other in packed.models:
        here = board.incumbents.get(other.name, [])
        for index in here:
            board.put(other, board.loads[index], other.utilization / len(here))
    model, tolerance = board.models[name], 1 + packed.hysteresis_percent / 100
    sources = [board.loads[index] for index in board.placed[name]]
    found = [_candidate(board, model, load, sources, tolerance, packed.price) for load in board.loads]
    return sorted(found, key=lambda found: (not found.chosen, not found.feasible, found.score, found.worker))


def _candidate(
    board: Board, model: ModelDemand, load: Load, sources: Sequence[Load], tolerance: float, price: MovePrice
) -> Candidate:
    chosen, share = model.name in load.models, board.share(model)
    more = (0.0, 0) if chosen else (share, size(model))
    affinity = board.affinity(model.name, load)
    seconds = 0.0 if chosen else price.seconds(model.weights_bytes, warm=affinity is not Affinity.NONE)
    score = load.with_change(*more)
    return Candidate(
        worker=load.name,
        node=load.node,
        score=score,
        compute=load.compute + more[0],
        held_bytes=load.held + more[1],
        capacity_bytes=load.capacity,
        feasible=chosen or load.feasible(model),
        fits=not load.crowded if chosen else load.fits(model),
        affinity=affinity,
        reload_bytes_per_second=reloads_of(load, board.calls, model=None if chosen else model).rate
        if board.swapping
        else None,
        load_seconds=seconds,
        chosen=chosen,
        needs=_stay(board, model, load, tolerance)
        if chosen
        else _come(board, model, load, sources, score=score, tolerance=tolerance, seconds=seconds, price=price),
    )


def _stay(board: Board, model: ModelDemand, load: Load, tolerance: float) -> str:
    """What keeps a model where it is."""
    if board.wanted[model.name] == len(board.loads):
        return "it is wanted on every worker"
    share, nbytes = load.models[model.name][1], size(model)
    others = [
        (other.with_change(share, nbytes), other.name)
        for other in board.loads
        if model.name not in other.models and other.feasible(model)
    ]
    if not others:
        return "no other worker has room for it"
    best, name = min(others)
    if best * tolerance < load.score:
        return f"'{name}' would be at {best:.2f} against {load.score:.2f} here: the next repack may move it"
    return (
        f"it leaves when this worker is above {best * tolerance:.2f}: '{name}', the best of the others, would be at "
        f"{best:.2f}{_otherwise(board)}"
    )


def _come(
    board: Board,
    model: ModelDemand,
    load: Load,
    sources: Sequence[Load],
    *,
    score: float,
    tolerance: float,
    seconds: float,
    price: MovePrice,
) -> str:
    """What would bring a model to a worker where it is not."""
    if not load.feasible(model):
        return (
            f"{quantities.human(load.missing(model))} more device memory, or so much less pinned weights and code there"
        )
    if board.lacking(model):
        return "nothing: the next repack places the missing copy"
    source = max(sources, key=lambda source: (source.score, source.name), default=None)
    if source is None:
        return "a copy: spec.replicas is 0"
    if score * tolerance >= source.score:
        return f"a score below {source.score / tolerance:.2f}, or '{source.name}' above {score * tolerance:.2f} (now {source.score:.2f}){_otherwise(board)}"
    if not price.pays((source.score - score) / source.compute_unit, seconds):
        return f"a gain above {seconds / price.horizon_seconds:.2g} to pay for a load of {seconds:.2g} s (now {source.score - score:.2g})"
    return "nothing: the next repack may move it there"


def _otherwise(board: Board) -> str:
    return "; or for fewer reloads" if board.swapping else ""
