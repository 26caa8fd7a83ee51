# SPDX-License-Identifier: Apache-2.0
"""The upload gate: what lets loads run at full link speed and still step aside for the inputs of requests.

A copy engine serves its queue in order, so that a load whose stream always has a copy queued starves every other
host-to-device copy until it ends. Whoever uploads the inputs of a request therefore announces it here, and a load asks
before each of its pieces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class UploadGate:
    """Counts uploads of request inputs; open while there are none. Any thread may use it.

    Invariants: tickets are handed out in rising order and `_pending` holds the unfinished ones in that order, so its
    first key is the oldest upload that has not ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._pending: dict[int, None] = {}
        self._next = 0

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Hold the gate closed, from before the inputs' copies are enqueued until they have been.

        Copies of a load that are enqueued afterwards queue behind them, so there is no need to wait for their end.
        """
        with self._changed:
            ticket = self._next
            self._next += 1
            self._pending[ticket] = None
        try:
            yield
        finally:
            with self._changed:
                del self._pending[ticket]
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether an upload is pending now."""
        return bool(self._pending)

    def wait_clear(self) -> None:
        """Wait until every upload that was pending at the time of the call has ended.

        Later ones are not waited for: each of them is delayed by the pieces in flight at most, and a load makes progress
        however many requests come.
        """
        if not self._pending:
            return
        with self._changed:
            last = self._next
            self._changed.wait_for(lambda: next(iter(self._pending), last) >= last)
