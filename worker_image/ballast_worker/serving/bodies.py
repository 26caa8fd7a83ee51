# SPDX-License-Identifier: Apache-2.0
"""A bound on the bytes of request bodies that a worker holds at one time, of all clients and both protocols together."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

RETRY_SECONDS: Final = 1
"""What a client that was refused is told to wait: as many bytes as were held may be gone by then."""


class BodiesFullError(Exception):
    """As many bytes of bodies are held as may be: HTTP 503, gRPC UNAVAILABLE, and worth another try."""


class Bodies:
    """Counts what is held, and refuses what would be too much. Nothing waits, so that nothing can wait for itself.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held = 0
        # A share may end on any thread, in the middle of anything, also of `take`: it must not need the lock.
        self._returned: deque[int] = deque()

    @property
    def held(self) -> int:
        """Bytes that are held now. Any thread."""
        with self._lock:
            self._settle()
            return self._held

    def take(self, nbytes: int) -> None:
        """Hold so many more. Any thread.

        Raises:
            BodiesFullError: that would be too much.
        """
        with self._lock:
            self._settle()
            if self._held + nbytes > self._limit:
                raise BodiesFullError(
                    f"this worker holds {self._held} bytes of requests, and {nbytes} more would exceed "
                    f"serving.maxHeldBytes, which is {self._limit}: try again, or raise it"
                )
            self._held += nbytes

    def give_back(self, nbytes: int) -> None:
        """So many are held no longer. Any thread."""
        self._returned.append(nbytes)

    def _settle(self) -> None:
        while self._returned:
            self._held -= self._returned.popleft()


class Share:
    """What one request holds of them, given back with the last reference to it: whoever keeps a body keeps its share."""

    __slots__ = ("_bodies", "_nbytes")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._nbytes = 0

    def take(self, nbytes: int) -> None:
        """See `Bodies.take`."""
        self._bodies.take(nbytes)
        self._nbytes += nbytes

    def give_back(self) -> None:
        """Nothing of the body is kept any more."""
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._bodies.give_back(nbytes)

    def __del__(self) -> None:
        self.give_back()
