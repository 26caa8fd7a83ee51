# SPDX-License-Identifier: Apache-2.0
"""Which failures are worth a line in the log: a model that is tried again and again fails mostly of the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ballast_worker.control.models import Failure

_AGAIN_SECONDS: Final = 60.0


class Complaints:
    """What was said of each model last. One thread uses it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, tuple[Failure, float]] = {}

    def worth(self, name: str, failure: Failure) -> bool:
        """Whether to say this failure now: another one than before, or the same after a minute."""
        now = self._clock()
        said = self._said.get(name)
        if said is not None and said[0] == failure and now - said[1] < _AGAIN_SECONDS:
            return False
        self._said[name] = failure, now
        return True

    def forget(self, name: str) -> None:
        """It works, or is not wanted any more, or as it was."""
        self._said.pop(name, None)
