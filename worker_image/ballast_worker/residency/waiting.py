# SPDX-License-Identifier: Apache-2.0
"""The second step of a load: what is fetched waits for room, which it is given in order of the tickets."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from functools import partial

from ballast_worker.residency.admission import Excluded, Resident, Wait
from ballast_worker.residency.board import Board
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.exclusion import Exclusion
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.residency.records import Purpose, Weights
from ballast_worker.residency.room import Placed, Room

POLL_SECONDS = 0.1
"""A load that waits for room looks again after so long, should nothing else make it."""


class Waiting:
    """Fetched loads without an extent, by ticket."""

    def __init__(
        self,
        *,
        board: Board,
        room: Room,
        exclusion: Exclusion,
        infeasible: Callable[[ResidentModel], Refusal | None],
        fill: Callable[[Weights], None],
        refused: Callable[[Weights, Refusal], None],
        no_room: Callable[[Weights], None],
        after: Callable[[float, Callable[[], None]], None],
        turn: Callable[[], None],
    ) -> None:
        """Args:
        board: the shared state.
        room: makes it.
        exclusion: asked before each fill.
        infeasible: refuses what can never fit, and records it.
        fill: called with a load that has an extent now.
        refused: called with one that gets none, which has been recorded.
        no_room: called with one that may not make others go, where nothing is free.
        after: runs an action on the device thread after so many seconds.
        turn: called when it may be time to look again.
        """
        self._board = board
        self._room = room
        self._exclusion = exclusion
        self._infeasible = infeasible
        self._fill = fill
        self._refused = refused
        self._no_room = no_room
        self._after = after
        self._turn = turn
        self._waiting: list[Weights] = []
        self._alarm = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, weights: Weights) -> None:
        """A load that is fetched."""
        insort(self._waiting, weights, key=lambda w: w.ticket)

    def remove(self, weights: Weights) -> None:
        """One that is of no use any more."""
        self._waiting.remove(weights)

    @property
    def largest(self) -> int:
        """Bytes of the largest model that waits."""
        return max((weights.nbytes for weights in self._waiting), default=0)

    def admit(self) -> Wait | None:
        """Make room for fetched loads, in order, and let them fill; answers what the first one that cannot waits for."""
        while self._waiting:
            weights = self._waiting[0]
            if (waits := self._exclusion.wait()) is not None:
                self._set_alarm()
                return waits
            if self._board.memory.shares_pool and not weights.purpose.evicts:
                self._waiting.pop(0)
                if self._room.place_free(weights):
                    self._fill(weights)
                else:
                    self._no_room(weights)
                continue
            answer = self._infeasible(weights.model.spec) or self._without_old(weights) or self._room.place(weights)
            if isinstance(answer, Wait):
                self._set_alarm()
                return answer
            self._waiting.pop(0)
            if isinstance(answer, Placed):
                self._fill(weights)
                self._bring_back(answer.dropped)
            else:
                self._refused(weights, answer)
        return None

    def _without_old(self, weights: Weights) -> Wait | None:
        """Where the old weights of the model leave no room beside them, they go first."""
        old = weights.model.live
        if old is None:
            return None
        capacity = self._board.memory.statistics().capacity
        pinned = self._board.pinned_beside(weights.model.spec)
        if old.nbytes + weights.nbytes + pinned <= capacity:
            return None
        if old.leases:
            return Wait(drain=(_draining(old),))
        self._board.free(old)
        return None

    def _bring_back(self, names: tuple[str, ...]) -> None:
        """After a fallback compaction the most valuable of those that had to go come back, as far as they fit."""
        board = self._board
        free = board.memory.statistics().free
        for name in reversed(names):
            model = board.models.get(name)
            if model is not None and model.live is None and model.nbytes <= free:
                free -= model.nbytes
                board.ask(model, Purpose.RELOAD)

    def _set_alarm(self) -> None:
        """Look again when the next minimum residence ends, and now and then in any case."""
        now = self._board.clock()
        ends = (w.stays_until for w in self._board.extents.values() if w.stays_until > now)
        at = min(min(ends, default=math.inf), now + POLL_SECONDS)
        if at < self._alarm or self._alarm < now:
            self._alarm = at
            self._after(at - now, partial(self._ring, at))

    def _ring(self, at: float) -> None:
        if self._alarm == at:
            self._alarm = math.inf
        self._turn()


def _draining(weights: Weights) -> Resident:
    return Resident(weights.extent, weights.model.name, weights.nbytes, 0.0, queued=False, excluded=Excluded.EXECUTING)
