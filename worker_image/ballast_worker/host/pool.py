# SPDX-License-Identifier: Apache-2.0
"""The host pool: copies of weights in segments of shared memory, and streams where there is no room for a copy."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ballast_contract.quantities import human
from ballast_contract.reasons import Reason
from ballast_worker.bundle.reader import Bundle
from ballast_worker.host.directory import TABLE_FILE
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.filling import digest_of
from ballast_worker.host.limits import Available, available
from ballast_worker.host.opened import NoCopy, OpenedPool, Taken
from ballast_worker.host.pages import PAGE_BYTES
from ballast_worker.host.segments import PageLocker
from ballast_worker.host.store import HostBytes, HostStatistics, HostTrouble, Transfer
from ballast_worker.host.stream import RING_BYTES, Ring, Stream
from ballast_worker.host.transfers import NothingToTransfer

__all__ = ["HostPool", "HostPoolError", "PageLocker"]

_log = logging.getLogger(__name__)

FILE_THREADS: Final = 8
"""That read one model's file: more than there are cores, because each waits for the disk most of the time."""


class HostPool:
    """Implements `host.store.HostStore`; the same code for a private directory and for one that workers share."""

    def __init__(
        self,
        *,
        directory: Path,
        budget: int | None,
        segment_bytes: int = 64 << 20,
        mode: int = 0o660,
        ring_bytes: int = RING_BYTES,
        file_threads: int = FILE_THREADS,
        locker: PageLocker | None = None,
        limits: Callable[[Path], Available] = available,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open the pool: sweep what a killed worker left, trim to the budget, allocate, map and lock the segments.

        Args:
            directory: the pool's own directory, created when missing; the memory is where it lies (tmpfs).
            budget: bytes that copies may take; 0 keeps none but those asked to be kept, None is unlimited.
            segment_bytes: size of a segment file, a multiple of 2 MiB; not more than the budget is used.
            mode: permission bits of the files.
            ring_bytes: memory through which weights without a copy are streamed.
            file_threads: threads that read one model's file.
            locker: page-locks segments and ring.
            limits: how much memory may still be taken.
            clock: monotonic seconds.
            pause: waits so many seconds, while somebody else fills a region and between steps of late page-locking.

        Raises:
            HostPoolError: the directory cannot be used: another owner or mode, or others use one of another format.
        """
        if segment_bytes < PAGE_BYTES or segment_bytes % PAGE_BYTES:
            raise HostPoolError(f"segments of {segment_bytes} bytes; their size is a multiple of {PAGE_BYTES}")
        if budget:
            segment_bytes = min(segment_bytes, max(PAGE_BYTES, budget // PAGE_BYTES * PAGE_BYTES))
        self._path = directory
        self._budget = budget
        self._segment_bytes = segment_bytes
        self._mode = mode
        self._file_threads = file_threads
        self._locker = locker
        self._limits = limits
        self._clock = clock
        self._pause = pause
        self._ring = Ring(ring_bytes, locker=locker)
        # Guards everything below.
        self._lock = threading.Lock()
        self._opened: OpenedPool | None = None
        self._unopened: str | None = None  # why there is no pool, where memory was short from the start
        self._streams: list[Stream] = []
        self._without: dict[bytes, str] = {}  # why the last load of these weights kept no copy
        self._loaded: dict[bytes, bool] = {}  # weights, and whether it was said that their file is read again
        self._hits = self._misses = self._fills = self._fallbacks = 0
        if budget != 0:
            try:
                self._open(late=False)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise HostPoolError(f"the host pool at {directory} cannot be opened: {error}") from error
                self._unopened = (
                    f"there is no room for a host pool at {directory}: {error.strerror}; weights are streamed from their "
                    "files at each load"
                )
                _warn(self._unopened)
        elif (directory / TABLE_FILE).exists():
            # Copies of a time with a budget are given back; without any, this worker needs no pool.
            with contextlib.suppress(HostPoolError, OSError):
                self._open(late=False)

    def _open(self, *, late: bool) -> OpenedPool:
        """The pool, opened by whoever needs it first.

        Raises:
            HostPoolError: it may not be used.
            OSError: the file system failed.
        """
        with self._lock:
            if self._opened is not None:
                return self._opened
            opened = self._opened = OpenedPool(
                self._path,
                budget=self._budget,
                segment_bytes=self._segment_bytes,
                mode=self._mode,
                file_threads=self._file_threads,
                locker=self._locker,
                limits=self._limits,
                clock=self._clock,
                pause=self._pause,
                late=late,
            )
            self._unopened = None
        if opened.supply.shortage is not None:
            _warn(opened.supply.shortage)
        return opened

    def acquire(self, bundle: Bundle, *, keep: bool, progress: Callable[[int], None] | None = None) -> Transfer:
        """See `HostStore.acquire`."""
        if not bundle.layout.nbytes:
            return NothingToTransfer()
        if self._budget == 0 and not keep:
            self._note(bundle, read=True)
            return self._stream(bundle)
        try:
            taken = self._open(late=True).take(bundle, keep=keep, progress=progress)
        except (HostPoolError, OSError) as error:
            # The pool failed, not the bundle, whose failures are BundleErrors: its file may be read all the same.
            taken = NoCopy(str(error))
        if isinstance(taken, NoCopy):
            return self._fall_back(bundle, taken.reason)
        self._count(bundle, taken)
        return taken.transfer

    def find(self, bundle: Bundle, *, keep: bool) -> Transfer | None:
        """See `HostStore.find`."""
        opened = self._opened
        taken = None if opened is None else opened.find(bundle, keep=keep)
        if taken is None:
            return None
        self._count(bundle, taken)
        return taken.transfer

    def _count(self, bundle: Bundle, taken: Taken) -> None:
        with self._lock:
            self._hits += taken.hit
            self._misses += not taken.hit
            self._fills += not taken.hit
            self._without.pop(digest_of(bundle), None)
        self._note(bundle, read=not taken.hit)

    def _fall_back(self, bundle: Bundle, reason: str) -> Transfer:
        transfer = self._stream(bundle)
        message = (
            f"no host copy of '{bundle.manifest.name}' ({human(bundle.layout.nbytes)}) is kept: {reason}; it is "
            "streamed from its file at each load"
        )
        with self._lock:
            self._fallbacks += 1
            told = digest_of(bundle) in self._without
            self._without[digest_of(bundle)] = message
        if not told:
            _warn(message)
        return transfer

    def _note(self, bundle: Bundle, *, read: bool) -> None:
        """Say once for each model that its file is read again, because it was loaded before and no copy is there."""
        with self._lock:
            digest = digest_of(bundle)
            told = self._loaded.get(digest)
            again = read and told is False
            self._loaded[digest] = bool(told) or again
        if again:
            _log.warning(
                "weights of '%s' (%s) are read from the file again, because %s: a load of it takes as long as its file "
                "takes; raise %s so that copies stay",
                bundle.manifest.name,
                human(bundle.layout.nbytes),
                "host.budget is 0 and no copy was kept" if self._budget == 0 else "their host copy is gone",
                "the memory limit" if self._budget is None else "host.budget",
                extra={"event": "host.reread", "model": bundle.manifest.name},
            )

    def trouble(self, bundles: Iterable[Bundle]) -> HostTrouble | None:
        """Why copies are not kept as they should be, or None: as the last load of each of these bundles found it, else as
        the pool was found. What other bundles' loads found is forgotten. Any thread; never waits for a read.
        """
        served = {digest_of(bundle) for bundle in bundles} if self._without else set()
        with self._lock:
            if self._without:
                self._without = {digest: why for digest, why in self._without.items() if digest in served}
            found = next(reversed(self._without.values()), self._unopened)
            opened = self._opened
        if found is None and opened is not None:
            found = opened.supply.shortage
        if found is not None:
            return HostTrouble(Reason.SHM_FALLBACK, found)
        excess = _excess(opened)
        if not excess:
            return None
        return HostTrouble(
            Reason.HOST_BUDGET_EXCEEDED,
            f"host copies take {human(excess)} more than the budget of {human(self._budget or 0)}, for models whose "
            "residency is system: raise host.budget, or give fewer models that residency",
        )

    def _stream(self, bundle: Bundle) -> Transfer:
        stream = Stream(self._ring, bundle.open_weights(), bundle.layout)
        with self._lock:
            self._misses += 1
            self._streams = [other for other in self._streams if other.reading]
            self._streams.append(stream)
        return stream

    def has(self, bundle: Bundle) -> bool:
        """See `HostStore.has`."""
        opened = self._opened
        return opened is not None and opened.has(digest_of(bundle))

    def evict(self, bundle: Bundle) -> bool:
        """See `HostStore.evict`. A kept copy stays."""
        opened = self._opened
        return opened is not None and opened.evict(digest_of(bundle))

    def unkeep(self, bundle: Bundle) -> None:
        """See `HostStore.unkeep`."""
        if self._opened is not None:
            self._opened.unkeep(digest_of(bundle))

    def statistics(self) -> HostStatistics:
        """See `HostStore.statistics`."""
        opened, nbytes = self._opened, HostBytes()
        if opened is not None:
            with contextlib.suppress(HostPoolError, OSError):
                nbytes = opened.nbytes()
        excess = _excess(opened)
        with self._lock:
            return HostStatistics(
                budget=self._budget,
                nbytes=nbytes,
                excess=excess,
                hits=self._hits,
                misses=self._misses,
                fills=self._fills,
                fallbacks=self._fallbacks,
                swept_regions=0 if opened is None else opened.supply.swept.regions,
                swept_bytes=0 if opened is None else opened.supply.swept.nbytes,
            )

    def close(self) -> None:
        """See `HostStore.close`. No transfer may be open."""
        with self._lock:
            streams, self._streams = self._streams, []
            opened, self._opened = self._opened, None
        for stream in streams:
            stream.close()
            stream.join()
        self._ring.close()
        if opened is not None:
            opened.close()


def _excess(opened: OpenedPool | None) -> int:
    """Bytes of segments beyond the budget; 0 where that cannot be told."""
    if opened is not None:
        with contextlib.suppress(HostPoolError, OSError):
            return opened.supply.excess()
    return 0


def _warn(message: str) -> None:
    _log.warning("%s", message, extra={"event": "host.fallback", "reason": Reason.SHM_FALLBACK.value})
