# SPDX-License-Identifier: Apache-2.0
"""When what failed and may pass is tried again: after a second, then twice as long each time, at most five minutes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FIRST_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 300.0


@dataclass(slots=True)
class _Retry:
    due: float
    attempts: int


class Retries:
    """What is to be tried again, by name. One thread uses it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._retries: dict[str, _Retry] = {}
        # By time. An entry whose time is no longer that of its retry is passed over.
        self._queue: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._retries

    def soon(self, name: str) -> None:
        """Something that worked until now has failed: try it again after the shortest pause."""
        self._plan(name, _FIRST_SECONDS, 0)

    def failed(self, name: str) -> None:
        """An attempt has failed, the first one or a later one."""
        attempts = self._retries[name].attempts + 1 if name in self._retries else 0
        self._plan(name, min(_FIRST_SECONDS * 2.0 ** min(attempts, 16), _LAST_SECONDS), attempts)

    def forget(self, name: str) -> None:
        """It works, is not wanted any more, or cannot pass."""
        self._retries.pop(name, None)

    def due(self) -> list[str]:
        """What is to be tried now; each is named once for each failure."""
        now, names = self._clock(), []
        while self._queue and self._queue[0][0] <= now:
            due, name = heapq.heappop(self._queue)
            retry = self._retries.get(name)
            if retry is not None and retry.due == due:
                retry.due = math.inf
                names.append(name)
        return names

    def _plan(self, name: str, pause: float, attempts: int) -> None:
        due = self._clock() + pause
        self._retries[name] = _Retry(due, attempts)
        heapq.heappush(self._queue, (due, name))
