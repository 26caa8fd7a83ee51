# SPDX-License-Identifier: Apache-2.0
"""The threads below residency: file reads of different models overlap, copies to the device go one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.host.store import HostStore, Transfer


class Loader(Protocol):
    """What the manager asks of the threads below it. Called on the device thread; never blocks.

    Every `done` is posted to the device thread exactly once.
    """

    def fetch(self, bundle: Bundle, *, keep: bool, done: Callable[[Transfer | Exception], None]) -> None:
        """Get hold of a host copy or a stream, on a thread of the file pool."""
        ...

    def fill(self, key: str, transfer: Transfer, done: Callable[[Exception | None], None]) -> None:
        """Copy a transfer into the extent `key` on the copy thread, then close the transfer.

        When `done` runs, nothing reads the host copy or writes to the extent any more.
        """
        ...

    def discard(self, transfer: Transfer) -> None:
        """Close a transfer that is not needed any more, on a thread of the file pool."""
        ...

    def unkeep(self, bundle: Bundle) -> None:
        """Make a kept host copy an ordinary one, on a thread of the file pool."""
        ...

    def close(self) -> None:
        """End the threads after what they do now; what waits is dropped and its `done` is never called."""
        ...


class ThreadedLoader:
    """A pool of file threads and one copy thread."""

    def __init__(
        self,
        *,
        memory: DeviceMemory,
        store: HostStore,
        post: Callable[[Callable[[], None]], None],
        file_threads: int = 4,
    ) -> None:
        """Start the threads.

        Args:
            memory: whose `fill` the copy thread calls.
            store: whose `acquire` the file threads call.
            post: runs an action on the device thread, soon; any thread may call it.
            file_threads: models whose files are read at the same time.
        """
        raise NotImplementedError
