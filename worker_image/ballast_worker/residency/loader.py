# SPDX-License-Identifier: Apache-2.0
"""The threads below residency: file reads of different models overlap, copies to the device go one after the other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.host.store import HostStore, Transfer


class Loader(Protocol):
    """What the manager asks of the threads below it. Called on the device thread; never blocks.

    Every `done` is posted to the device thread exactly once, with the seconds that the work took on its thread, without
    the time it waited for one.
    """

    @property
    def file_threads(self) -> int:
        """How many fetches make progress at the same time."""
        ...

    def fetch(self, bundle: Bundle, *, keep: bool, done: Callable[[Transfer | Exception, float], None]) -> None:
        """Get hold of a host copy or a stream, on a thread of the file pool."""
        ...

    def fill(self, key: str, transfer: Transfer, done: Callable[[Exception | None, float], None]) -> None:
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


class ThreadedLoader:
    """Implements `Loader` with a pool of file threads and one copy thread."""

    def __init__(
        self,
        *,
        memory: DeviceMemory,
        store: HostStore,
        post: Callable[[Callable[[], None]], None],
        file_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads.

        Args:
            memory: whose `fill` the copy thread calls.
            store: whose `acquire` the file threads call.
            post: runs an action on the device thread, soon; any thread may call it.
            file_threads: models whose files are read at the same time.
            clock: monotonic seconds.
        """
        self.file_threads = file_threads
        self._memory = memory
        self._store = store
        self._post = post
        self._clock = clock
        self._closing = threading.Event()
        self._files = ThreadPoolExecutor(file_threads, thread_name_prefix="files")
        self._fills: queue.SimpleQueue[tuple[str, Transfer, Callable[[Exception | None, float], None]] | None] = (
            queue.SimpleQueue()
        )
        self._copies = threading.Thread(target=self._copy, name="copies", daemon=True)
        self._copies.start()

    def fetch(self, bundle: Bundle, *, keep: bool, done: Callable[[Transfer | Exception, float], None]) -> None:
        """See `Loader.fetch`."""

        def work() -> None:
            result: Transfer | Exception
            began = self._clock()
            try:
                result = self._store.acquire(bundle, keep=keep)
            except Exception as error:  # noqa: BLE001 - whatever went wrong is this load's end, and nobody else's
                result = error
            self._post(partial(done, result, self._clock() - began))

        self._files.submit(work)

    def fill(self, key: str, transfer: Transfer, done: Callable[[Exception | None, float], None]) -> None:
        """See `Loader.fill`."""
        self._fills.put((key, transfer, done))

    def discard(self, transfer: Transfer) -> None:
        """See `Loader.discard`."""
        self._files.submit(transfer.close)

    def unkeep(self, bundle: Bundle) -> None:
        """See `Loader.unkeep`."""
        self._files.submit(self._store.unkeep, bundle)

    def close(self) -> None:
        """End the threads after what they do now, when the device thread has ended: what waits is dropped."""
        self._closing.set()
        self._files.shutdown(wait=True, cancel_futures=True)
        self._fills.put(None)
        self._copies.join()

    def _copy(self) -> None:
        while (job := self._fills.get()) is not None:
            key, transfer, done = job
            if self._closing.is_set():
                transfer.close()
                continue
            began = self._clock()
            error = self._fill(key, transfer)
            self._post(partial(done, error, self._clock() - began))

    def _fill(self, key: str, transfer: Transfer) -> Exception | None:
        try:
            try:
                self._memory.fill(key, transfer.chunks())
            finally:
                transfer.close()
        except Exception as error:  # noqa: BLE001 - likewise
            return error
        return None
