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
    cheapest_single,
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
        gone: tuple[Resident, ...] = ()
        if weights.nbytes > before.free:
            residents = self._board.residents()
            choice = free_bytes(residents, weights.nbytes - before.free)
            if isinstance(choice, Wait):
                return self._wait(weights, choice, before, residents)
            gone = choice.residents
            self._evict(gone, weights)
        if memory.shares_pool:
            return self._place_by_freeing(weights, before, residents, gone)
        return self._place_by_moving(weights, before, residents)

    def keep_scratch(self, weights: Weights) -> None:
        """After a fill: where executions have too little in one block, the cheapest go, those inside their minimum residence
        last, but not what was just filled.
        """
        while self._board.memory.starved():
            residents = self._board.residents()
            recent = [r._replace(excluded=Excluded.NOT) for r in residents if r.excluded is Excluded.RECENT]
            single = cheapest_single(residents) or cheapest_single(recent)
            if single is None:
                return
            self._evict((single,), weights)

    def _place_by_moving(
        self, weights: Weights, before: Statistics, residents: Sequence[Resident]
    ) -> Placed | Wait | Refusal:
        memory = self._board.memory
        dropped: tuple[str, ...] | None = None
        while True:
            moves = memory.moves_for(weights.nbytes) if weights.nbytes else Moves(0, 0)
            if moves is not None:
                self._slide(moves, weights)
                if self._place(weights):
                    return self._placed(weights, before, residents, dropped or ())
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
                return self._refuse(weights, before, residents)

    def _place_by_freeing(
        self, weights: Weights, before: Statistics, residents: Sequence[Resident], gone: tuple[Resident, ...]
    ) -> Placed | Wait | Refusal:
        """Nothing executes and nothing is filled. After those that went for their bytes, the cheapest go one by one; when
        all had to, that was a compaction, and the most valuable may come back.
        """
        board = self._board
        singles: list[Resident] = []
        while not self._place(weights):
            now = board.residents()
            residents = residents or now
            single = cheapest_single(now)
            if single is None:
                if _unpinned(now):
                    return self._wait(weights, Wait(), before, residents)
                return self._refuse(weights, before, residents)
            singles.append(single)
            self._evict((single,), weights)
        if not singles or any(r.extent != weights.extent for r in _unpinned(board.residents())):
            return self._placed(weights, before, residents, ())
        board.ledger.count(fallback_compactions=1, compactions=1)
        all_gone = sorted((*gone, *singles), key=lambda resident: resident.key)
        return self._placed(weights, before, residents, tuple(resident.model for resident in all_gone))

    def _placed(
        self, weights: Weights, before: Statistics, residents: Sequence[Resident], dropped: tuple[str, ...]
    ) -> Placed:
        verdict = "AfterEviction" if weights.evicted else "AfterMoves" if weights.moved else ""
        self._record(weights, f"admitted{verdict}", before, residents)
        return Placed(dropped)

    def _refuse(self, weights: Weights, before: Statistics, residents: Sequence[Resident]) -> Refusal:
        now = self._board.memory.statistics()
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


def _unpinned(residents: Iterable[Resident]) -> list[Resident]:
    """Those that go now or will."""
    return [r for r in residents if r.nbytes and r.excluded is not Excluded.PINNED]
