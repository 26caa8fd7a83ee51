# SPDX-License-Identifier: Apache-2.0
"""A token bucket for writes that serves the more urgent caller first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from enum import IntEnum

_TICK_SECONDS = 0.001  # a wait that rounding makes infinitely small would never pass
_HELD_SECONDS = 0.05


class Priority(IntEnum):
    """Who goes first when writes have to wait."""

    FENCING = 0
    """The Lease, finalizers, deletions: what others wait for."""
    READY = 1
    """What decides whether calls arrive: Pods, Services, endpoints, Ready conditions, assignments."""
    NORMAL = 2
    """Everything else that is wanted."""
    FIGURES = 3
    """Sizes and tiers that a person reads later; Events."""


class TokenBucket:
    """At most `burst` writes at once and `rate` a second after that; waiting callers go by priority, then by age.

    While `held` answers true, only those of the highest priority go.
    """

    def __init__(
        self,
        *,
        rate: float,
        burst: int,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._held = held
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._sleep = sleep
        self._filled = clock()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._pump: asyncio.Task[None] | None = None

    async def acquire(self, priority: Priority = Priority.NORMAL) -> None:
        """Take one token, waiting behind callers of a higher or equal priority."""
        self._fill()
        if not self._waiting and self._tokens >= 1 and not self._holds(priority):
            self._tokens -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve(), name="token-bucket")
        await turn

    def _holds(self, priority: int) -> bool:
        return priority > Priority.FENCING and self._held()

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now

    async def _serve(self) -> None:
        while self._waiting:
            self._fill()
            if self._tokens < 1:
                await self._sleep(max(_TICK_SECONDS, (1 - self._tokens) / self._rate))
                continue
            if self._holds(self._waiting[0][0]):
                await self._sleep(_HELD_SECONDS)
                continue
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # a cancelled caller takes no token
                self._tokens -= 1
                turn.set_result(None)
