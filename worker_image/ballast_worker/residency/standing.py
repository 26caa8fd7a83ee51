# SPDX-License-Identifier: Apache-2.0
"""What models are loaded for without anybody asking, and when that is tried again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ballast_contract.config import ResidencyWish
from ballast_worker.residency.board import Board
from ballast_worker.residency.records import Model, Purpose


class Standing:
    """Pursues what the user wants of each model."""

    def __init__(
        self, *, board: Board, after: Callable[[float, Callable[[], None]], None], turn: Callable[[], None]
    ) -> None:
        """Args:
        board: the shared state.
        after: runs an action on the device thread after so many seconds.
        turn: called when there is something new to do.
        """
        self._board = board
        self._after = after
        self._turn = turn

    @staticmethod
    def purpose(model: Model) -> Purpose | None:
        """To serve its new bundle, to be on the device, or to have a host copy; None when all is as wanted, or only
        requests load it.
        """
        if model.live is not None and model.live.bundle.digest != model.spec.bundle.digest:
            return Purpose.REPLACE
        if model.spec.wish is ResidencyWish.DEVICE:
            return Purpose.PINNED if model.live is None else None
        return Purpose.HOST if model.spec.wish is ResidencyWish.SYSTEM and not model.kept else None

    def pursue(self, model: Model) -> None:
        """See that it is under way, unless it has failed just now."""
        purpose = self.purpose(model)
        if purpose is not None and self._board.clock() >= model.retry_at:
            self._board.ask(model, purpose)

    def later(self, model: Model, seconds: float) -> None:
        """Try again after a failure, where there is something to pursue."""
        if self.purpose(model) is not None:
            self._after(seconds, partial(self._retry, model, model.generation))

    def _retry(self, model: Model, generation: int) -> None:
        if self._board.models.get(model.name) is model and model.generation == generation:
            model.retry_at = 0.0
            self.pursue(model)
            self._turn()
