# SPDX-License-Identifier: Apache-2.0
"""How long a connection of a client has been in use, and whether what it is told arrives."""

from __future__ import annotations

import random

from ballast_worker.serving.connections import CONNECTION_SECONDS, JITTER


class Use:
    """When a connection was used last, and when it is time to leave it.

    Attributes:
        last: monotonic seconds.
        ends: from when on its client is told to open another one.
    """

    def __init__(self, now: float) -> None:
        self.last = now
        self.ends = now + CONNECTION_SECONDS * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311

    def forsaken(self, now: float) -> bool:
        """It has not been used for so long that its client would have been told to leave it."""
        return now - self.last > CONNECTION_SECONDS


class Leaving:
    """Whether anything of an answer leaves, from looks at how much waits and how much came."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def stuck(self, now: float, waiting: int, came: int | None) -> float:
        """Seconds for which nothing has left.

        Args:
            now: monotonic seconds.
            waiting: bytes that the client has not taken.
            came: bytes of an answer that is still coming; None: there is none.
        """
        seen = (waiting, -1 if came is None else came)
        if seen != self._seen or seen == (0, -1):
            self._seen, self._since = seen, now
        return now - self._since
