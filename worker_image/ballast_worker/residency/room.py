# SPDX-License-Identifier: Apache-2.0
"""Carrying out admission: evict, slide, place, and as a last resort free everything that may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ballast_contract.config import ResidencyWish
from ballast_worker.device.memory import Moves, NotPlaceableError, Statistics
from ballast_worker.residency.admission import (
    Evict,
    Excluded,
    Resident,
    Wait,
    free_block,
    free_bytes,
    not_contiguous,
)
from ballast_worker.residency.board import Board
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.records import Weights


@dataclass(frozen=True, slots=True)
class Placed:
    """The weights have an extent.

    Attributes:
        dropped: extents' models that a fallback compaction freed; the most valuable may come back.
    """

    dropped: tuple[str, ...] = ()


class Room:
    """Makes room on the device for one set of weights at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def place_free(self, weights: Weights) -> bool:
        """Give the weights an extent if one is free as it is; evicts and moves nothing."""
        moves = self._board.memory.moves_for(weights.nbytes) if weights.nbytes else Moves(0, 0)
        if moves is None or moves.count:
            return False
        before = self._board.memory.statistics()
        if not self._place(weights):
            return False
        self._record(weights, "admitted", before, ())
        return True

    def place(self, weights: Weights) -> Placed | Wait | Refusal:
        """Give the weights an extent; evicts and moves what that takes.

        When it answers Wait or Refusal, victims that went before room turned out not to be enough are in
        `weights.evicted`.
        """
        memory = self._board.memory
        before = memory.statistics()
        residents: Sequence[Resident] = ()
        if weights.nbytes > before.free:
            residents = self._board.residents()
            choice = free_bytes(residents, weights.nbytes - before.free)
            if isinstance(choice, Wait):
                return self._wait(weights, choice, before, residents)
            self._evict(choice.residents, weights)
        dropped: tuple[str, ...] | None = None
        while True:
            moves = memory.moves_for(weights.nbytes) if weights.nbytes else Moves(0, 0)
            if moves is not None:
                self._slide(moves, weights)
                if self._place(weights):
                    verdict = "AfterEviction" if weights.evicted else "AfterMoves" if weights.moved else ""
                    self._record(weights, f"admitted{verdict}", before, residents)
                    return Placed(dropped or ())
            residents = residents or self._board.residents()
            now = memory.statistics()
            step = free_block(memory.extents(), self._board.residents(), capacity=now.capacity, needed=weights.nbytes)
            if moves is None and isinstance(step, Wait):
                return self._wait(weights, step, before, residents)
            if moves is None and isinstance(step, Evict) and step.residents:
                self._evict(step.residents, weights)
            elif dropped is None:
                dropped = self._drop_all(weights)
            else:
                refusal = not_contiguous(
                    model=weights.model.name, needed=weights.nbytes, free=now.free, largest_free=now.largest_free
                )
                self._board.ledger.count(admission_failures=1)
                self._record(weights, "refused", before, residents, refusal)
                return refusal

    def _place(self, weights: Weights) -> bool:
        pinned = weights.model.spec.wish is ResidencyWish.DEVICE
        try:
            self._board.memory.place(weights.extent, weights.bundle.layout, pinned=pinned)
        except NotPlaceableError:
            return False
        weights.placed = True
        self._board.extents[weights.extent] = weights
        return True

    def _slide(self, moves: Moves, weights: Weights) -> None:
        if moves.count:
            done = self._board.memory.make_room(weights.nbytes)
            weights.moved += done.nbytes
            self._board.ledger.count(moved_bytes=done.nbytes, compaction_seconds=done.seconds)

    def _evict(self, residents: Iterable[Resident], weights: Weights) -> None:
        for resident in residents:
            self._board.evict(resident)
            weights.evicted.append(resident.model)

    def _drop_all(self, weights: Weights) -> tuple[str, ...]:
        idle = [r for r in self._board.residents() if r.excluded is Excluded.NOT]
        self._evict(idle, weights)
        done = self._board.memory.compact()
        weights.moved += done.nbytes
        self._board.ledger.count(
            fallback_compactions=1, compactions=1, moved_bytes=done.nbytes, compaction_seconds=done.seconds
        )
        return tuple(r.model for r in idle)

    def _wait(self, weights: Weights, choice: Wait, before: Statistics, residents: Sequence[Resident]) -> Wait:
        if not weights.told_waiting:
            weights.told_waiting = True
            self._record(weights, "waiting", before, residents)
        return choice

    def _record(
        self,
        weights: Weights,
        verdict: str,
        before: Statistics,
        residents: Sequence[Resident],
        refusal: Refusal | None = None,
    ) -> None:
        self._board.ledger.decide(
            model=weights.model.name,
            kind="load",
            verdict=verdict,
            needed=weights.nbytes,
            memory=before,
            residents=residents,
            evicted=weights.evicted,
            moved=weights.moved,
            refusal=refusal,
        )
