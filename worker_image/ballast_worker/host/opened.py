# SPDX-License-Identifier: Apache-2.0
"""An open pool: how a region is found, filled by one and waited for by the others, kept and evicted."""

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
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.limits import Available
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Locks
from ballast_worker.host.pages import pages_for
from ballast_worker.host.segments import PageLocker, Segments
from ballast_worker.host.store import Transfer
from ballast_worker.host.table import Entry, State, Table
from ballast_worker.host.transfers import RegionTransfer

_log = logging.getLogger(__name__)

_NO_FILE = FileIdentity(0, 0, 0, 0, 0)

STALLED_SECONDS = 30.0
"""A fill by somebody else that makes no progress for so long is not waited for any more: the weights are streamed."""

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.02

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """A transfer from a region.

    Attributes:
        transfer: from it.
        hit: the copy was there; else the file was read.
    """

    transfer: Transfer
    hit: bool


@dataclass(frozen=True, slots=True)
class NoCopy:
    """No copy can be had, and why."""

    reason: str


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
    segments: int


class OpenedPool:
    """The regions of a pool as this process uses them. Any thread.

    Attributes:
        shortage: why there are fewer segments than the budget says; None when there are not, as the start and then each
            load found it.
    """

    def __init__(
        self,
        path: Path,
        *,
        budget: int | None,
        segment_bytes: int,
        mode: int,
        file_threads: int,
        locker: PageLocker | None,
        limits: Callable[[Path], Available],
        clock: Callable[[], float],
        pause: Callable[[float], None],
        late: bool,
    ) -> None:
        """Put right what a killed worker left, bring the segments to what the budget says, map and lock them.

        The arguments are those of `HostPool`; `late`: something may be executing, so memory is locked in small steps.

        Raises:
            HostPoolError: the directory cannot be used.
            OSError: the file system failed.
        """
        self._path = path
        self._budget = budget
        self._file_threads = file_threads
        self._limits = limits
        self._clock = clock
        self._pause = pause
        self._directory = PoolDirectory(path, segment_bytes=segment_bytes, mode=mode)
        self._segment_bytes = self._directory.table.segment_bytes
        self._most = None if budget is None else budget // self._segment_bytes
        self._segments = Segments(self._directory, locker=locker, pause=pause)
        self._keeps = self._directory.locks()
        # Guards the dictionary and the locks of `_keeps`; taken inside the table's lock, never around it.
        self._keeping = threading.Lock()
        self._kept: dict[bytes, int] = {}
        try:
            self.shortage = self._start()
            self._segments.map(self._directory.table.read().segments, late=late)
        except BaseException:
            self.close()
            raise

    def _start(self) -> str | None:
        directory = self._directory
        with directory.locked():
            regions.drop_missing_segments(directory)
            regions.drop_dead(directory)
        regions.remove_strays(directory)
        if self._most is None:
            return None
        with directory.locked():
            there = regions.trim(directory, segments=self._most)
        while there < self._most and self._add_segment(most=self._most):
            there += 1
        if there >= self._most:
            return None
        return (
            f"{self._path} has {there} of {self._most} segments of {human(self._segment_bytes)}: {self._no_segment()}; "
            "what does not fit into them is streamed from its file at each load"
        )

    def _add_segment(self, *, most: int | None) -> bool:
        try:
            return regions.add_segment(
                self._directory, most=most, room=lambda: self._limits(self._path).nbytes >= self._segment_bytes
            )
        except OSError as error:
            _log.warning("no further segment in %s: %s", self._path, error)
            return False

    def _no_segment(self) -> str:
        limit = self._limits(self._path)
        return f"{limit.limit} leaves {human(limit.nbytes)}, and a segment takes {human(self._segment_bytes)}"

    def take(self, bundle: Bundle, *, keep: bool, progress: Progress | None) -> Taken | NoCopy:
        """Get a copy, filling it if there is none.

        Raises:
            BundleError: the file cannot be read, or is not what the manifest says. Nothing is kept.
            HostPoolError: the pool cannot be used any more.
            OSError: the pool's file system failed.
        """
        there = self._directory.table.read().segments
        self._segments.forget(there)
        may_evict = self._most is not None and len(there) >= self._most
        if may_evict:
            self.shortage = None
        while True:
            step = self._step(bundle, keep=keep, evict=may_evict)
            if isinstance(step, _Hit):
                return Taken(self._transfer(step.entry, step.lock), hit=True)
            if isinstance(step, _Fill):
                return Taken(self._fill(step, bundle, keep=keep, progress=progress), hit=False)
            if isinstance(step, _Busy):
                if not self._wait(step.slot, progress):
                    return NoCopy("another worker reads it, and has made no progress for a while")
            elif not self._grow(step.segments, keep=keep):
                if may_evict:
                    return NoCopy(self._why_full(step.segments))
                may_evict = True

    def _grow(self, segments: int, *, keep: bool) -> bool:
        """One more segment where the budget, or a copy that is to be kept, allows it."""
        beyond = self._most is not None and segments >= self._most
        if (beyond and not keep) or not self._add_segment(most=None if keep else self._most):
            return False
        if beyond:
            _log.warning(
                "kept copies exceed the host budget of %s in %s: one more segment of %s was taken",
                human(self._budget or 0),
                self._path,
                human(self._segment_bytes),
            )
        return True

    def _why_full(self, segments: int) -> str:
        if self._most is not None and segments >= self._most:
            return f"the budget of {human(self._budget or 0)} is taken by copies that are kept or in transfer"
        return self._no_segment()

    def _step(self, bundle: Bundle, *, keep: bool, evict: bool) -> _Hit | _Fill | _Busy | _Full:
        """One look at the table."""
        directory, digest = self._directory, digest_of(bundle)
        with directory.locked():
            table = directory.table.read()
            entry = table.find(digest, LAYOUT_VERSION)
            if entry is not None and entry.state is State.READY:
                lock = directory.locks()
                if lock.try_shared(entry_byte(entry.slot)):
                    directory.table.mark(entry.slot, filled=entry.nbytes, loaded_ns=time.monotonic_ns())
                    self._keep(digest, entry.slot, wanted=keep)
                    return _Hit(entry, lock)
                lock.close()
                return _Busy(entry.slot)
            if entry is not None:
                table = regions.drop_dead(directory)
                if table.find(digest, LAYOUT_VERSION) is not None:
                    return _Busy(entry.slot)
            return self._reserve(table, bundle, evict=evict)

    def _reserve(self, table: Table, bundle: Bundle, *, evict: bool) -> _Fill | _Full:
        """Enter a region that is to be filled, and whatever goes for it, by one change of the table."""
        directory, pages = self._directory, pages_for(bundle.layout.nbytes)
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
                    digest=digest_of(bundle),
                    nbytes=bundle.layout.nbytes,
                    identity=_NO_FILE,
                    name=bundle.manifest.name,
                    runs=room.runs,
                )
                directory.table.mark(slot, filled=0, loaded_ns=time.monotonic_ns())
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

    def _fill(self, step: _Fill, bundle: Bundle, *, keep: bool, progress: Progress | None) -> Transfer:
        """Read the file into the region and publish it, or leave nothing of it."""
        table, entry, done = self._directory.table, step.entry, 0

        def report(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            table.mark(entry.slot, filled=done, loaded_ns=0)
            if progress is not None:
                progress(done)

        try:
            with self._segments.window(entry.runs) as memory, bundle.open_weights() as file:
                try:
                    file.read_into(memory, layout=bundle.layout, threads=self._file_threads, progress=report)
                except OSError as error:
                    raise BundleError("SourceNotFound", f"{bundle.path} cannot be read: {error}") from error
                ready = replace(entry, state=State.READY, identity=file.identity)
            with self._directory.locked():
                table.mark(entry.slot, filled=entry.nbytes, loaded_ns=time.monotonic_ns())
                table.change(lambda now: now.with_entry(ready))
                step.lock.try_shared(entry_byte(entry.slot))
                self._keep(entry.digest, entry.slot, wanted=keep)
        except BaseException:
            with contextlib.suppress(OSError, HostPoolError), self._directory.locked():
                table.change(lambda now: now.without({entry.slot}))
            step.lock.close()
            raise
        return self._transfer(ready, step.lock)

    def _transfer(self, entry: Entry, lock: Locks) -> Transfer:
        with _closed_on_error(lock):
            self._segments.map(sorted({run.segment for run in entry.runs}), late=True)
        return RegionTransfer(self._segments, entry, lock)

    def _wait(self, slot: int, progress: Progress | None) -> bool:
        """Wait until nobody fills the slot any more; False when its filler makes no progress."""
        seen, since, interval = -1, self._clock(), FIRST_POLL_SECONDS
        with self._directory.locks() as locks:
            while not locks.try_shared(entry_byte(slot)):
                done, _ = self._directory.table.marks(slot)
                if done != seen:
                    seen, since = done, self._clock()
                    if progress is not None:
                        progress(done)
                elif self._clock() - since > STALLED_SECONDS:
                    return False
                self._pause(interval)
                interval = min(2 * interval, LONGEST_POLL_SECONDS)
        return True

    def _keep(self, digest: bytes, slot: int, *, wanted: bool) -> None:
        """Hold a region against eviction. Hold the table's lock, so that nobody is evicting it."""
        if wanted:
            with self._keeping:
                self._keeps.try_shared(keep_byte(slot))
                self._kept[digest] = slot

    def unkeep(self, digest: bytes) -> None:
        """Let go of a region that was kept."""
        with self._keeping:
            slot = self._kept.pop(digest, None)
            if slot is not None:
                self._keeps.unlock(keep_byte(slot))

    def has(self, digest: bytes) -> bool:
        """Whether a complete copy is there."""
        try:
            return (digest, LAYOUT_VERSION) in self._directory.table.ready()
        except (HostPoolError, OSError):
            return False

    def evict(self, digest: bytes) -> bool:
        """Drop a copy unless it is kept or in transfer."""
        directory = self._directory
        with directory.locked(), directory.locks() as locks:
            table = directory.table.read()
            entry = table.find(digest, LAYOUT_VERSION)
            if entry is None or entry.state is not State.READY or not regions.try_evict(entry, locks):
                return False
            directory.table.write(table.without({entry.slot}))
            return True

    def cached_bytes(self) -> int:
        """Bytes of the pages of complete copies."""
        try:
            return regions.used_bytes(self._directory.table.read().entries)
        except (HostPoolError, OSError):
            return 0

    def close(self) -> None:
        """Let go of everything; copies stay. No transfer may be open."""
        self._keeps.close()
        self._segments.close()
        self._directory.close()


def digest_of(bundle: Bundle) -> bytes:
    """The digest of a bundle's weights, which with the layout version is the key of its copy."""
    return bytes.fromhex(bundle.manifest.weights.digest.partition(":")[2])


@contextlib.contextmanager
def _closed_on_error(locks: Locks) -> Iterator[None]:
    try:
        yield
    except BaseException:
        locks.close()
        raise
