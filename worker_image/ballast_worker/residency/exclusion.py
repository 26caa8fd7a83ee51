# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is where fills and executions exclude one another, because weights share the pool of executions.

One fill at a time, after the executions under way; and between two fills an execution of whatever has requests. Elsewhere
fills and executions go on side by side, and nothing here holds anybody up.
"""

from __future__ import annotations

from ballast_worker.residency.admission import Wait
from ballast_worker.residency.board import Board


class Exclusion:
    """Told of every fill and execution; lives on the device thread."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._fills = 0
        # A fill has ended, and no execution since.
        self._executions_next = False

    def fill_began(self) -> None:
        """A fill is handed to the copy thread."""
        self._fills += 1

    def fill_ended(self) -> None:
        """It has ended, well or not."""
        self._fills -= 1
        self._executions_next = True

    def executed(self) -> None:
        """An execution has ended."""
        self._executions_next = False

    @property
    def filling(self) -> bool:
        """A fill is under way beside which nothing may execute."""
        return bool(self._fills) and self._board.memory.shares_pool

    def wait(self) -> Wait | None:
        """What the next fill waits for; None when it may begin."""
        board = self._board
        if not board.memory.shares_pool:
            return None
        if self._fills:
            return Wait(quiet=True)
        if self._executions_next:
            live = (model.name for model in board.models.values() if model.live is not None)
            self._executions_next = any(board.demand.queued(name) for name in live)
        if self._executions_next:
            return Wait()
        return Wait(quiet=True) if board.leases else None
