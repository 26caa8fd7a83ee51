# SPDX-License-Identifier: Apache-2.0
"""How many models are at each stage: counted as they move, since a walk over all of them at each event takes its square."""

from __future__ import annotations

from collections import Counter

from ballast_worker.control.models import ModelView, Stage


class Census:
    """Owned by the control loop, which tells it of every view that comes, changes or goes."""

    def __init__(self) -> None:
        self._stages: Counter[Stage] = Counter()

    def moved(self, before: ModelView | None, after: ModelView | None) -> None:
        """A model has another view now; None before its first and after its last."""
        if before is not None:
            self._stages[before.stage] -= 1
        if after is not None:
            self._stages[after.stage] += 1

    @property
    def models(self) -> int:
        """All of them."""
        return self._stages.total()

    @property
    def under_way(self) -> int:
        """Neither built nor refused yet."""
        return self._stages[Stage.PENDING] + self._stages[Stage.BUILDING]

    @property
    def waiting(self) -> int:
        """Built, and not taken by the engine yet."""
        return self._stages[Stage.BUILT]
