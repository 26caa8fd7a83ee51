# SPDX-License-Identifier: Apache-2.0
"""The threads below residency: file reads of different models overlap, copies to the device go one after the other."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.host.store import HostStore, Transfer

_log = logging.getLogger(__name__)

_LET_BY = 16
"""Copies from host memory that a stream lets go before it although they came later."""


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
        """Get hold of a host copy or a stream: at once where a copy is there, else on a thread of the file pool."""
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
        """Make a kept host copy an ordinary one, at once: a later fetch may keep it again."""
        ...


class _ClosingError(Exception):
    """A read is not needed any more, because the worker ends."""


@dataclass(frozen=True, slots=True, order=True)
class _Fill:
    """A copy to be made, in order of `turn`.

    Copies from host memory go before streams, which last as long as their source takes; but only so many that come later,
    so that a model that moves here gets its share of a link that is never idle.
    """

    turn: int
    number: int
    key: str = field(compare=False)
    transfer: Transfer = field(compare=False)
    done: Callable[[Exception | None, float], None] = field(compare=False)


@dataclass(frozen=True, slots=True)
class _End:
    """Sorts before every copy, so that closing waits for one copy at most."""

    def __lt__(self, other: object) -> bool:
        return True

    def __gt__(self, other: object) -> bool:
        return False


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
            store: whose `acquire` the file threads call, and `find` the device thread.
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
        self._fills: queue.PriorityQueue[_Fill | _End] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._copies = threading.Thread(target=self._copy, name="copies", daemon=True)
        self._copies.start()

    def fetch(self, bundle: Bundle, *, keep: bool, done: Callable[[Transfer | Exception, float], None]) -> None:
        """See `Loader.fetch`."""
        began = self._clock()
        try:
            found = self._store.find(bundle, keep=keep)
        except Exception:  # noqa: BLE001 - `acquire` meets it too, and its answer tells
            found = None
        if found is not None:
            self._post(partial(done, found, self._clock() - began))
            return

        def work() -> None:
            result: Transfer | Exception
            began = self._clock()
            try:
                result = self._store.acquire(bundle, keep=keep, progress=self._go_on)
            except Exception as error:  # noqa: BLE001 - whatever went wrong is this load's end, and nobody else's
                result = error
            self._post(partial(done, result, self._clock() - began))

        self._files.submit(work)

    def fill(self, key: str, transfer: Transfer, done: Callable[[Exception | None, float], None]) -> None:
        """See `Loader.fill`."""
        number = next(self._numbers)
        self._fills.put(_Fill(number if transfer.kept else number + _LET_BY, number, key, transfer, done))

    def discard(self, transfer: Transfer) -> None:
        """See `Loader.discard`."""
        self._files.submit(transfer.close).add_done_callback(partial(_report, "closing a transfer"))

    def unkeep(self, bundle: Bundle) -> None:
        """See `Loader.unkeep`."""
        try:
            self._store.unkeep(bundle)
        except Exception:  # noqa: BLE001 - the copy is kept for longer, and nothing else is wrong
            _log.exception("letting go of the kept copy of %s failed", bundle.manifest.name)

    def close(self) -> None:
        """End the threads, when the device thread has ended: reads stop at once, a copy of what is in memory runs to its
        end, the rest is dropped.
        """
        self._closing.set()
        self._files.shutdown(wait=True, cancel_futures=True)
        self._fills.put(_End())
        self._copies.join()
        while not self._fills.empty():
            left = self._fills.get()
            if isinstance(left, _Fill):
                left.transfer.close()

    def _go_on(self, nbytes: int) -> None:
        """Progress of a read: the place where it can be stopped."""
        if self._closing.is_set():
            raise _ClosingError(f"the worker ends; {nbytes} bytes had been read")

    def _until_closing(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """A stream is read while it is copied, which may take its source minutes."""
        for chunk in chunks:
            if self._closing.is_set():
                raise _ClosingError("the worker ends while a stream is read")
            yield chunk

    def _copy(self) -> None:
        while isinstance(job := self._fills.get(), _Fill):
            began = self._clock()
            error = self._fill(job.key, job.transfer)
            self._post(partial(job.done, error, self._clock() - began))

    def _fill(self, key: str, transfer: Transfer) -> Exception | None:
        try:
            try:
                chunks = transfer.chunks()
                self._memory.fill(key, chunks if transfer.kept else self._until_closing(chunks))
            finally:
                transfer.close()
        except Exception as error:  # noqa: BLE001 - likewise
            return error
        return None


def _report(what: str, future: Future[None]) -> None:
    """Log the failure of work that nobody waits for."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.error("%s failed", what, exc_info=error)
