# SPDX-License-Identifier: Apache-2.0
"""From the device thread back to the event loop: many answers, one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from ballast_worker.serving.call import Outcome


class Mailbox:
    """Outcomes on their way to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[Callable[[Outcome], None], Outcome]] = deque()
        self._woken = False

    def put(self, receive: Callable[[Outcome], None], outcome: Outcome) -> None:
        """Call `receive` on the loop, soon, in order. Any thread; never blocks. After the loop's end nothing happens."""
        self._letters.append((receive, outcome))
        # `_deliver` clears the flag before it looks: a letter is seen by the delivery that is due, or wakes another.
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._letters:
            receive, outcome = self._letters.popleft()
            receive(outcome)
