# SPDX-License-Identifier: Apache-2.0
"""The host pool: copies of weights in segments of shared memory, and streams where there is no room for a copy."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ballast_contract.quantities import human
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.files import FileIdentity
from ballast_worker.bundle.layout import LAYOUT_VERSION
from ballast_worker.bundle.reader import Bundle
from ballast_worker.host import regions
from ballast_worker.host.directory import TABLE_FILE, PoolDirectory, entry_byte, keep_byte
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.limits import Available, available
from ballast_worker.host.locks import Locks
from ballast_worker.host.pages import PAGE_BYTES, pages_for
from ballast_worker.host.segments import PageLocker, Segments
from ballast_worker.host.store import HostStatistics, Transfer
from ballast_worker.host.stream import Ring, Stream
from ballast_worker.host.table import Entry, State, Table
from ballast_worker.host.transfers import NothingToTransfer, RegionTransfer

__all__ = ["HostPool", "HostPoolError", "PageLocker"]

_log = logging.getLogger(__name__)

_NO_FILE = FileIdentity(0, 0, 0, 0, 0)

STALLED_SECONDS = 30.0
"""A fill by somebody else that makes no progress for so long is not waited for any more: the weights are streamed."""

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _Hit:
    entry: Entry
    lock: Locks


@dataclass(frozen=True, slots=True)
class _Fill:
    entry: Entry
    lock: Locks


@dataclass(frozen=True, slots=True)
class _Busy:
    slot: int


@dataclass(frozen=True, slots=True)
class _Full:
    """No pages, whatever goes."""

    segments: int


class HostPool:
    """Implements `host.store.HostStore`; the same code for a private directory and for one that workers share."""

    def __init__(
        self,
        *,
        directory: Path,
        budget: int | None,
        segment_bytes: int = 64 << 20,
        mode: int = 0o660,
        ring_bytes: int = 64 << 20,
        file_threads: int = 4,
        locker: PageLocker | None = None,
        on_fallback: Callable[[str], None] | None = None,
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
            on_fallback: told why a copy could not be kept, once per model; from any thread.
            limits: how much memory may still be taken.
            clock: monotonic seconds.
            pause: waits so many seconds, while somebody else fills a region and between steps of late page-locking.

        Raises:
            HostPoolError: the directory cannot be used: another owner or mode, or others use one of another format.
        """
        if segment_bytes < PAGE_BYTES or segment_bytes % PAGE_BYTES:
            raise HostPoolError(f"segments of {segment_bytes} bytes; their size is a multiple of {PAGE_BYTES}")
        self._path = directory
        self._budget = budget
        if budget:
            segment_bytes = min(segment_bytes, max(PAGE_BYTES, budget // PAGE_BYTES * PAGE_BYTES))
        self._segment_bytes = segment_bytes
        self._mode = mode
        self._file_threads = file_threads
        self._locker = locker
        self._on_fallback = on_fallback
        self._limits = limits
        self._clock = clock
        self._pause = pause
        self._ring = Ring(ring_bytes, locker=locker)
        # Guards everything below.
        self._lock = threading.Lock()
        self._opened: tuple[PoolDirectory, Segments, Locks] | None = None
        self._kept: dict[bytes, int] = {}
        self._streams: list[Stream] = []
        self._told: set[bytes] = set()
        self._hits = self._misses = self._fallbacks = 0
        if budget != 0:
            self._open(late=False)
        elif (directory / TABLE_FILE).exists():
            # Copies of a time with a budget are given back; without any, this worker needs no pool.
            with contextlib.suppress(HostPoolError):
                self._open(late=False)

    # Opening

    def _open(self, *, late: bool) -> tuple[PoolDirectory, Segments, Locks]:
        shortage = None
        with self._lock:
            if self._opened is None:
                try:
                    directory = PoolDirectory(self._path, segment_bytes=self._segment_bytes, mode=self._mode)
                    shortage = self._start(directory)
                except OSError as error:
                    raise HostPoolError(f"the host pool at {self._path} cannot be opened: {error}") from error
                segments = Segments(directory, locker=self._locker, pause=self._pause)
                segments.map(directory.table.read().segments, late=late)
                self._opened = (directory, segments, directory.locks())
            opened = self._opened
        if shortage is not None:
            self._tell(shortage)
        return opened

    def _start(self, directory: PoolDirectory) -> str | None:
        """Put right what a killed worker left, and bring the segments to what the budget says; answers what is short."""
        with directory.locked():
            regions.drop_missing_segments(directory)
            regions.drop_dead(directory)
        regions.remove_strays(directory)
        most = self._most_segments(directory)
        if most is None:
            return None
        with directory.locked():
            there = regions.trim(directory, segments=most)
        while there < most and self._add_segment(directory, most=most):
            there += 1
        if there >= most:
            return None
        return (
            f"{self._path} has {there} of {most} segments of {human(directory.table.segment_bytes)}: "
            f"{self._why_not(directory)}; what does not fit into them is streamed from its file at each load"
        )

    def _most_segments(self, directory: PoolDirectory) -> int | None:
        return None if self._budget is None else self._budget // directory.table.segment_bytes

    def _add_segment(self, directory: PoolDirectory, *, most: int | None) -> bool:
        nbytes = directory.table.segment_bytes
        try:
            return regions.add_segment(directory, most=most, room=lambda: self._limits(self._path).nbytes >= nbytes)
        except OSError as error:
            _log.warning("no further segment in %s: %s", self._path, error)
            return False

    def _why_not(self, directory: PoolDirectory) -> str:
        limit = self._limits(self._path)
        return f"{limit.limit} leaves {human(limit.nbytes)}, and a segment takes {human(directory.table.segment_bytes)}"

    # The store

    def acquire(self, bundle: Bundle, *, keep: bool, progress: Callable[[int], None] | None = None) -> Transfer:
        """See `HostStore.acquire`."""
        if not bundle.layout.nbytes:
            return NothingToTransfer()
        if self._budget == 0 and not keep:
            return self._stream(bundle)
        try:
            opened = self._open(late=True)
            return self._from_pool(bundle, opened, keep=keep, progress=progress)
        except (HostPoolError, OSError) as error:
            # The pool failed, not the bundle, whose failures are BundleErrors: its file may be read all the same.
            return self._fall_back(bundle, str(error))

    def _from_pool(
        self,
        bundle: Bundle,
        opened: tuple[PoolDirectory, Segments, Locks],
        *,
        keep: bool,
        progress: Callable[[int], None] | None,
    ) -> Transfer:
        directory, segments, _ = opened
        now = directory.table.read().segments
        segments.forget(now)
        most = self._most_segments(directory)
        may_evict = most is not None and len(now) >= most
        while True:
            step = self._step(directory, bundle, keep=keep, evict=may_evict)
            if isinstance(step, _Hit):
                self._count(hits=1)
                return self._transfer(segments, step)
            if isinstance(step, _Fill):
                self._count(misses=1)
                return self._fill(directory, segments, step, bundle, keep=keep, progress=progress)
            if isinstance(step, _Busy):
                if not self._wait(directory, step.slot, progress):
                    return self._fall_back(bundle, "another worker reads it, and has made no progress for a while")
            elif (most is None or step.segments < most or keep) and self._add_segment(
                directory, most=None if keep or most is None else most
            ):
                if most is not None and step.segments >= most:
                    _log.warning(
                        "kept copies exceed the host budget of %s in %s: one more segment of %s was taken",
                        human(self._budget or 0),
                        self._path,
                        human(directory.table.segment_bytes),
                    )
            elif not may_evict:
                may_evict = True
            else:
                return self._fall_back(bundle, self._why_full(directory, step))

    def _why_full(self, directory: PoolDirectory, step: _Full) -> str:
        most = self._most_segments(directory)
        if most is not None and step.segments >= most:
            return f"the budget of {human(self._budget or 0)} is taken by copies that are kept or in transfer"
        return self._why_not(directory)

    def _step(
        self, directory: PoolDirectory, bundle: Bundle, *, keep: bool, evict: bool
    ) -> _Hit | _Fill | _Busy | _Full:
        """One look at the table."""
        digest = _digest(bundle)
        with directory.locked():
            table = directory.table.read()
            entry = table.find(digest, LAYOUT_VERSION)
            if entry is not None and entry.state is State.READY:
                lock = directory.locks()
                if lock.try_shared(entry_byte(entry.slot)):
                    directory.table.mark(entry.slot, filled=entry.nbytes, loaded_ns=self._now_ns())
                    self._keep(digest, entry.slot, wanted=keep)
                    return _Hit(entry, lock)
                lock.close()
                return _Busy(entry.slot)
            if entry is not None:
                table = regions.drop_dead(directory)
                if table.find(digest, LAYOUT_VERSION) is not None:
                    return _Busy(entry.slot)
            return self._reserve(directory, table, bundle, evict=evict)

    def _reserve(self, directory: PoolDirectory, table: Table, bundle: Bundle, *, evict: bool) -> _Fill | _Full:
        """Enter a region that is to be filled, and whatever goes for it, by one change of the table."""
        pages = pages_for(bundle.layout.nbytes)
        with directory.locks() as victims:
            room = regions.find_room(directory, table, pages, victims, evict=evict)
            if room is None:
                table = regions.drop_dead(directory)
                room = regions.find_room(directory, table, pages, victims, evict=evict)
            if room is None:
                return _Full(len(table.segments))
            lock = directory.locks()
            with _closed_on_error(lock):
                slot = self._lock_slot(room, lock, victims)
                entry = Entry(
                    slot=slot,
                    state=State.FILLING,
                    layout_version=LAYOUT_VERSION,
                    digest=_digest(bundle),
                    nbytes=bundle.layout.nbytes,
                    identity=_NO_FILE,
                    name=bundle.manifest.name,
                    runs=room.runs,
                )
                directory.table.mark(slot, filled=0, loaded_ns=self._now_ns())
                directory.table.write(room.table.with_entry(entry))
        for victim in room.evicted:
            _log.info("host copy of %s (%s) made room for %s", victim.name, human(victim.host_bytes), entry.name)
        return _Fill(entry, lock)

    def _lock_slot(self, room: regions.Room, lock: Locks, victims: Locks) -> int:
        """Take a free slot for a fill; one of a victim is free too."""
        gone = {victim.slot for victim in room.evicted}
        for slot in room.table.free_slots():
            if slot in gone:
                victims.unlock(entry_byte(slot))
                victims.unlock(keep_byte(slot))
            # Whoever has waited for an earlier fill of this slot may hold it for a moment.
            if lock.try_exclusive(entry_byte(slot)):
                return slot
        raise HostPoolError(f"{self._path} has no slot left for one more region")

    @staticmethod
    def _now_ns() -> int:
        """Time that the workers of a node share."""
        return time.monotonic_ns()

    def _fill(
        self,
        directory: PoolDirectory,
        segments: Segments,
        step: _Fill,
        bundle: Bundle,
        *,
        keep: bool,
        progress: Callable[[int], None] | None,
    ) -> Transfer:
        """Read the file into the region and publish it, or leave nothing of it."""
        entry, done = step.entry, 0

        def report(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            directory.table.mark(entry.slot, filled=done, loaded_ns=0)
            if progress is not None:
                progress(done)

        try:
            with segments.window(entry.runs) as memory, bundle.open_weights() as file:
                try:
                    file.read_into(memory, layout=bundle.layout, threads=self._file_threads, progress=report)
                except OSError as error:
                    raise BundleError("SourceNotFound", f"{bundle.path} cannot be read: {error}") from error
                identity = file.identity
            with directory.locked():
                ready = replace(entry, state=State.READY, identity=identity)
                directory.table.mark(entry.slot, filled=entry.nbytes, loaded_ns=self._now_ns())
                directory.table.change(lambda table: table.with_entry(ready))
                step.lock.try_shared(entry_byte(entry.slot))
                self._keep(entry.digest, entry.slot, wanted=keep)
            return self._transfer(segments, _Hit(ready, step.lock))
        except BaseException:
            with contextlib.suppress(OSError, HostPoolError), directory.locked():
                directory.table.change(lambda table: table.without({entry.slot}))
            step.lock.close()
            raise

    def _transfer(self, segments: Segments, hit: _Hit) -> Transfer:
        with _closed_on_error(hit.lock):
            segments.map(sorted({run.segment for run in hit.entry.runs}), late=True)
        return RegionTransfer(segments, hit.entry, hit.lock)

    def _wait(self, directory: PoolDirectory, slot: int, progress: Callable[[int], None] | None) -> bool:
        """Wait until nobody fills the slot any more; False when its filler makes no progress."""
        seen, since, interval = -1, self._clock(), FIRST_POLL_SECONDS
        with directory.locks() as locks:
            while not locks.try_shared(entry_byte(slot)):
                done, _ = directory.table.marks(slot)
                if done != seen:
                    seen, since = done, self._clock()
                    if progress is not None:
                        progress(done)
                elif self._clock() - since > STALLED_SECONDS:
                    return False
                self._pause(interval)
                interval = min(2 * interval, LONGEST_POLL_SECONDS)
        return True

    # Without a copy

    def _fall_back(self, bundle: Bundle, why: str) -> Transfer:
        transfer = self._stream(bundle)
        self._count(fallbacks=1)
        with self._lock:
            told = _digest(bundle) in self._told
            self._told.add(_digest(bundle))
        if not told:
            self._tell(
                f"no host copy of '{bundle.manifest.name}' ({human(bundle.layout.nbytes)}) is kept: {why}; it is streamed "
                "from its file at each load"
            )
        return transfer

    def _stream(self, bundle: Bundle) -> Transfer:
        stream = Stream(self._ring, bundle.open_weights(), bundle.layout)
        self._count(misses=1)
        with self._lock:
            self._streams = [other for other in self._streams if other.reading]
            self._streams.append(stream)
        return stream

    def _tell(self, message: str) -> None:
        _log.warning("%s", message)
        if self._on_fallback is not None:
            self._on_fallback(message)

    # Keeping and evicting

    def _keep(self, digest: bytes, slot: int, *, wanted: bool) -> None:
        """Hold a region against eviction. Hold the table's lock."""
        if wanted and self._opened is not None:
            self._opened[2].try_shared(keep_byte(slot))
            with self._lock:
                self._kept[digest] = slot

    def unkeep(self, bundle: Bundle) -> None:
        """See `HostStore.unkeep`."""
        with self._lock:
            slot = self._kept.pop(_digest(bundle), None)
            if slot is not None and self._opened is not None:
                self._opened[2].unlock(keep_byte(slot))

    def has(self, bundle: Bundle) -> bool:
        """See `HostStore.has`."""
        opened = self._opened
        if opened is None or not bundle.layout.nbytes:
            return False
        try:
            return (_digest(bundle), LAYOUT_VERSION) in opened[0].table.ready()
        except (HostPoolError, OSError):
            return False

    def evict(self, bundle: Bundle) -> bool:
        """See `HostStore.evict`. A kept copy stays."""
        opened = self._opened
        if opened is None:
            return False
        directory = opened[0]
        with directory.locked(), directory.locks() as locks:
            table = directory.table.read()
            entry = table.find(_digest(bundle), LAYOUT_VERSION)
            if entry is None or entry.state is not State.READY or not regions.try_evict(entry, locks):
                return False
            directory.table.write(table.without({entry.slot}))
            return True

    def statistics(self) -> HostStatistics:
        """See `HostStore.statistics`."""
        opened = self._opened
        entries: tuple[Entry, ...] = ()
        if opened is not None:
            with contextlib.suppress(HostPoolError):
                entries = opened[0].table.read().entries
        with self._lock:
            return HostStatistics(
                budget=self._budget,
                cached=regions.used_bytes(entries),
                hits=self._hits,
                misses=self._misses,
                fallbacks=self._fallbacks,
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
            directory, segments, keeps = opened
            keeps.close()
            segments.close()
            directory.close()

    def _count(self, *, hits: int = 0, misses: int = 0, fallbacks: int = 0) -> None:
        with self._lock:
            self._hits += hits
            self._misses += misses
            self._fallbacks += fallbacks


def _digest(bundle: Bundle) -> bytes:
    return bytes.fromhex(bundle.manifest.weights.digest.partition(":")[2])


@contextlib.contextmanager
def _closed_on_error(locks: Locks) -> Iterator[None]:
    try:
        yield
    except BaseException:
        locks.close()
        raise
