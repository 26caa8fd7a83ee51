# SPDX-License-Identifier: Apache-2.0
"""When a terminating worker ends: once its models and all clients have gone, or its time is up. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LINGER_SECONDS: Final = 5.0
"""A released worker passes calls on for so long at least, because clients learn of the move late."""

END_SECONDS: Final = 15.0
"""Before the end of the grace period, when admission stops whatever happened."""


class Draining:
    """The end of a worker as far as it has come. One thread uses it.

    Args:
        seconds: from termination, for which calls are admitted at most.
        linger_seconds: from release, for which they are admitted at least.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, *, linger_seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._linger_seconds, self._clock = seconds, linger_seconds, clock
        self._until: float | None = None
        self._released_at: float | None = None

    @property
    def begun(self) -> bool:
        """The worker is terminating."""
        return self._until is not None

    def begin(self, *, serving: bool) -> None:
        """The worker is told to end; one that does not serve yet ends at once."""
        self._until = self._clock() + (self._seconds if serving else 0.0)

    def release(self) -> bool:
        """The models have moved; False when that was known."""
        if self._released_at is not None:
            return False
        self._released_at = self._clock()
        return True

    def over(self, deserted: Callable[[], bool]) -> bool:
        """Whether the end has come.

        Args:
            deserted: whether no client is there that could be calling.
        """
        now = self._clock()
        if self._until is None:
            return False
        if now >= self._until:
            return True
        return self._released_at is not None and now - self._released_at >= self._linger_seconds and deserted()
