# SPDX-License-Identifier: Apache-2.0
"""The stream of a worker's states: one numbered sequence of changes, from which every watcher reads at its own pace."""

from __future__ import annotations

import collections
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.report import difference

HEARTBEAT_SECONDS: Final = 2.0
"""A fifth of what the operator waits for before a worker is stale. Heartbeats are most of what it does at rest."""
_log = logging.getLogger(__name__)

_COALESCE_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0
_KEPT: Final = 256
_SHARE: Final = 4
"""Times as long as publishing took, for which the feed then rests."""


class Feed:
    """Publishes what changed at most every 100 ms when it is touched, and what only counts on at most once a second.

    Invariant, under the lock: `_kept` holds consecutive sequence numbers that end with `_sequence`.

    Args:
        state: the worker's full state now; called on the feed's thread and in `publish`.
        epoch: the highest epoch the worker has seen.
    """

    def __init__(self, state: Callable[[], pb.WorkerState], epoch: Callable[[], int]) -> None:
        self.instance_id = secrets.token_hex(8)
        self._state, self._epoch = state, epoch
        self._changed = threading.Condition()
        self._kept: collections.deque[pb.WatchResponse] = collections.deque(maxlen=_KEPT)
        self._sequence = 1
        self._current = state()
        self._closed = False
        self._touched = threading.Event()
        self._publishing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to publish by itself."""
        self._thread.start()

    def touch(self) -> None:
        """Something that others wait for has changed. Any thread; never blocks."""
        self._touched.set()

    def publish(self) -> None:
        """Compare with what was published last and publish what changed."""
        with self._publishing:
            after = self._state()
            before = self._current
            if after.plan != before.plan or after.device_kind != before.device_kind:
                self._append(pb.WatchResponse(full=after), after)
            elif (change := difference(before, after)) is not None:
                self._append(pb.WatchResponse(change=change), after)

    def watch(
        self,
        *,
        instance_id: str,
        sequence: int,
        active: Callable[[], bool],
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> Iterator[pb.WatchResponse]:
        """Messages for one watcher: from where it stopped if that is known here, else from a full state.

        Ends when `active` answers false (asked at least once per heartbeat) or the feed is closed.
        """
        seen = sequence if instance_id == self.instance_id else None
        while active():
            messages, seen = self._after(seen, heartbeat_seconds)
            if messages is None:
                return
            yield from messages

    def close(self) -> None:
        """End every stream."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._touched.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _after(self, seen: int | None, heartbeat_seconds: float) -> tuple[list[pb.WatchResponse] | None, int | None]:
        """What follows `seen`, waiting for a heartbeat's time; None when the feed is closed."""
        with self._changed:
            if seen == self._sequence:
                self._changed.wait_for(lambda: self._closed or self._sequence != seen, heartbeat_seconds)
            if self._closed:
                return None, seen
            if seen == self._sequence:
                return [self._stamp(pb.WatchResponse(heartbeat=pb.Heartbeat()), seen)], seen
            first = self._sequence - len(self._kept) + 1
            if seen is None or not first - 1 <= seen < self._sequence:
                return [self._stamp(pb.WatchResponse(full=self._current), self._sequence)], self._sequence
            return [message for message in self._kept if message.sequence > seen], self._sequence

    def _append(self, message: pb.WatchResponse, state: pb.WorkerState) -> None:
        with self._changed:
            self._sequence += 1
            self._kept.append(self._stamp(message, self._sequence))
            self._current = state
            self._changed.notify_all()

    def _stamp(self, message: pb.WatchResponse, sequence: int) -> pb.WatchResponse:
        message.instance_id, message.sequence, message.epoch = self.instance_id, sequence, self._epoch()
        return message

    def _run(self) -> None:
        while not self._closed:
            self._touched.wait(_LOOK_SECONDS)
            self._touched.clear()
            began = time.monotonic()
            try:
                self.publish()
            except Exception:  # noqa: BLE001 - a state that cannot be told must not silence all later ones
                _log.exception("the worker's state could not be published")
            # What happens meanwhile goes out together. The states of many models leave most of the time to others.
            time.sleep(max(_COALESCE_SECONDS, _SHARE * (time.monotonic() - began)))
