# SPDX-License-Identifier: Apache-2.0
"""How long a connection of a client lasts.

A Service chooses a worker for each connection, so a client that keeps its connection keeps its worker. Connections end
after a while, in both protocols without losing a call: a client follows a model that has moved, instead of having every
call passed on, and no connection is in use when a worker whose models have moved ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

CONNECTION_SECONDS: Final = 10.0
"""Age at which a client is told to open another connection, give or take a tenth."""

_LEAVE_SECONDS: Final = 1.0
"""In which a client that was told to leave has done so."""

JITTER: Final = 0.1
"""Connections that began together do not end together."""


class Calls:
    """Calls over connections that nobody lists: how many are under way, and whether their clients can still be connected.

    Belongs to the event loop.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._under_way = 0

    @contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """A call over the connection of `peer`, from its arrival to its answer."""
        if peer not in self._began:
            self._began = {other: began for other, began in self._began.items() if not self._aged(began)}
            self._began[peer] = self._clock()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    @property
    def deserted(self) -> bool:
        """No call is under way, and every connection over which one came is so old that its client has left it."""
        return not self._under_way and all(map(self._aged, self._began.values()))

    def _aged(self, began: float) -> bool:
        return self._clock() - began > CONNECTION_SECONDS * (1 + JITTER) + _LEAVE_SECONDS
