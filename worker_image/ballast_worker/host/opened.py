# SPDX-License-Identifier: Apache-2.0
"""An open pool: how a region is found, filled by one and waited for by the others, kept and evicted."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ballast_contract.quantities import human
from ballast_worker.bundle.layout import LAYOUT_VERSION
from ballast_worker.bundle.reader import Bundle
from ballast_worker.host import filling, regions
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.filling import Fill, Progress, digest_of
from ballast_worker.host.limits import Available
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Locks
from ballast_worker.host.pages import pages_for
from ballast_worker.host.segments import PageLocker, Segments
from ballast_worker.host.store import HostBytes, Transfer
from ballast_worker.host.supply import Supply
from ballast_worker.host.table import Entry, State, Table
from ballast_worker.host.transfers import RegionTransfer

_log = logging.getLogger(__name__)


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
class _Busy:
    slot: int


@dataclass(frozen=True, slots=True)
class _Full:
    segments: int


class OpenedPool:
    """The regions of a pool as this process uses them. Any thread.

    Attributes:
        supply: its segments.
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
        self._file_threads = file_threads
        self._clock = clock
        self._pause = pause
        self._directory = PoolDirectory(path, segment_bytes=segment_bytes, mode=mode)
        self._segments = Segments(self._directory, locker=locker, pause=pause)
        self._keeps = self._directory.locks()
        # Guards the dictionary and the locks of `_keeps`; taken inside the table's lock, never around it.
        self._keeping = threading.Lock()
        self._kept: dict[bytes, int] = {}
        # Segments of the table as they were when those that had gone were last forgotten.
        self._tidied: tuple[int, ...] | None = None
        # Holders of locks that hold none; opening one costs as much as everything else of a load that finds its copy.
        self._idle: deque[Locks] = deque()
        try:
            self.supply = Supply(self._directory, budget=budget, limits=limits)
            self._segments.map(self._directory.table.read().segments, late=late)
        except BaseException:
            self.close()
            raise

    def take(self, bundle: Bundle, *, keep: bool, progress: Progress | None) -> Taken | NoCopy:
        """Get a copy, filling it if there is none.

        Raises:
            BundleError: the file cannot be read, or is not what the manifest says. Nothing is kept.
            HostPoolError: the pool cannot be used any more.
            OSError: the pool's file system failed.
        """
        table = self._directory.table.read()
        may_evict = self.supply.settle(table)
        if table.segments != self._tidied:
            self._segments.forget()
            self._tidied = table.segments
        while True:
            step = self._step(bundle, keep=keep, evict=may_evict)
            if isinstance(step, _Hit):
                return Taken(self._mapped(step), hit=True)
            if isinstance(step, Fill):
                return Taken(self._fill(step, bundle, keep=keep, progress=progress), hit=False)
            if isinstance(step, _Busy):
                if not filling.wait(
                    self._directory, step.slot, clock=self._clock, pause=self._pause, progress=progress
                ):
                    return NoCopy("another worker reads it, and has made no progress for a while")
            elif not self.supply.grow(step.segments, keep=keep):
                if may_evict:
                    return NoCopy(self.supply.why_full(step.segments))
                may_evict = True

    def find(self, bundle: Bundle, *, keep: bool) -> Taken | None:
        """Take a copy that is there and mapped, if nothing is to be tidied and nobody has the table's lock.

        Raises:
            HostPoolError: the pool cannot be used any more.
            OSError: the pool's file system failed.
        """
        directory = self._directory
        table = directory.table.cached()
        if table is None or table.segments != self._tidied or not self.supply.settled(table):
            return None
        entry = directory.table.ready().get((digest_of(bundle), LAYOUT_VERSION))
        if entry is None or not self._segments.mapped(entry.runs):
            return None
        with directory.locked_if_free() as locked:
            if not locked or directory.table.cached() is not table:
                return None
            step = self._share(entry, keep=keep)
        # Its segments stay mapped: they were, and from here on its lock keeps them in the table.
        return Taken(self._transfer(step), hit=True) if isinstance(step, _Hit) else None

    def _step(self, bundle: Bundle, *, keep: bool, evict: bool) -> _Hit | Fill | _Busy | _Full:
        """One look at the table."""
        directory, digest = self._directory, digest_of(bundle)
        with directory.locked():
            table = directory.table.read()
            entry = table.find(digest, LAYOUT_VERSION)
            if entry is not None and entry.state is State.READY:
                return self._share(entry, keep=keep)
            if entry is not None:
                table = self.supply.drop_dead()
                if table.find(digest, LAYOUT_VERSION) is not None:
                    return _Busy(entry.slot)
            return self._reserve(table, bundle, keep=keep, evict=evict)

    def _share(self, entry: Entry, *, keep: bool) -> _Hit | _Busy:
        """Lock a region that is ready against eviction. Hold the table's lock."""
        lock = self._idle.pop() if self._idle else self._directory.locks()
        try:
            if not lock.try_shared(entry_byte(entry.slot)):
                self._idle.append(lock)
                return _Busy(entry.slot)
            self._directory.table.mark(entry.slot, filled=entry.nbytes, loaded_ns=time.monotonic_ns())
            self._keep(entry, wanted=keep)
        except BaseException:
            lock.close()
            raise
        return _Hit(entry, lock)

    def _reserve(self, table: Table, bundle: Bundle, *, keep: bool, evict: bool) -> Fill | _Full:
        """Find room for a region and enter it."""
        directory, pages = self._directory, pages_for(bundle.layout.nbytes)
        most = None if keep else self.supply.most
        with directory.locks() as victims:
            room = regions.find_room(directory, table, pages, victims, evict=evict, most=most)
            if room is None:
                table = self.supply.drop_dead()
                room = regions.find_room(directory, table, pages, victims, evict=evict, most=most)
            if room is None:
                return _Full(len(table.segments))
            entered = filling.enter(directory, room, bundle, victims)
        for victim in room.evicted:
            _log.info(
                "host copy of %s (%s) made room for %s", victim.name, human(victim.host_bytes), entered.entry.name
            )
        return entered

    def _fill(self, step: Fill, bundle: Bundle, *, keep: bool, progress: Progress | None) -> Transfer:
        entry = filling.fill(
            self._directory,
            self._segments,
            step,
            bundle,
            threads=self._file_threads,
            published=lambda entry: self._keep(entry, wanted=keep),
            progress=progress,
        )
        return self._mapped(_Hit(entry, step.lock))

    def _mapped(self, hit: _Hit) -> Transfer:
        """A transfer whose segments are mapped first, which may take a while."""
        try:
            self._segments.map(sorted({run.segment for run in hit.entry.runs}), late=True)
        except BaseException:
            hit.lock.close()
            raise
        return self._transfer(hit)

    def _transfer(self, hit: _Hit) -> Transfer:
        return RegionTransfer(self._segments, hit.entry, partial(self._let_go, hit.entry.slot, hit.lock))

    def _let_go(self, slot: int, lock: Locks) -> None:
        lock.unlock(entry_byte(slot))
        self._idle.append(lock)

    def _keep(self, entry: Entry, *, wanted: bool) -> None:
        """Hold a region against eviction. Hold the table's lock, so that nobody is evicting it."""
        if wanted:
            with self._keeping:
                former = self._kept.get(entry.digest, entry.slot)
                if former != entry.slot:
                    self._keeps.unlock(keep_byte(former))
                self._keeps.try_shared(keep_byte(entry.slot))
                self._kept[entry.digest] = entry.slot

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

    def nbytes(self) -> HostBytes:
        """Bytes of the pool by state, now.

        Raises:
            HostPoolError: the table is damaged.
        """
        return regions.by_state(self._directory)

    def close(self) -> None:
        """Let go of everything; copies stay. No transfer may be open."""
        self._keeps.close()
        while self._idle:
            self._idle.pop().close()
        self._segments.close()
        self._directory.close()
