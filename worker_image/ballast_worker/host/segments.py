# SPDX-License-Identifier: Apache-2.0
"""Segments in this process: one long-lived read-only mapping each, page-locked, and writable windows on pages to fill.

A device copies from the read-only mapping only, so that a filled region cannot be changed through it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.pages import PAGE_BYTES, Run

PIECE_BYTES = 16 << 20
"""Memory that is mapped late is locked in steps of it, and chunks of what is not locked whole end at multiples of it within
a segment: so a copy never crosses separately locked pieces."""

PAUSE_SECONDS = 0.02
"""Between two late steps. Locking holds up every execution of the process (0.26 s for 8 GiB at once); in 16 MiB steps with
such pauses executions went on undisturbed (measured: p99 154 us, quiet 117 us)."""

_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10
_PROT_NONE = 0
_MADV_POPULATE_READ = 22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True, slots=True)
class PageLocker:
    """How mapped host memory is page-locked for the device; without one nothing is locked.

    Attributes:
        lock: called with address and bytes, both multiples of 4 KiB; returns whether the range is locked now. It must
            cope with read-only memory.
        unlock: called with an address that `lock` has locked, before it is unmapped.
    """

    lock: Callable[[int, int], bool]
    unlock: Callable[[int], None]


@dataclass(slots=True)
class _Mapping:
    memory: mmap.mmap
    address: int
    # Start of each piece that was locked by one call, and its bytes.
    locked: dict[int, int]


class Segments:
    """The segments that this process has mapped. Any thread may use it."""

    def __init__(
        self,
        directory: PoolDirectory,
        *,
        locker: PageLocker | None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        directory: where the files are; their size is that of its table.
        locker: page-locks what is mapped.
        pause: waits so many seconds between steps of late locking.
        """
        self._directory = directory
        self._nbytes = directory.table.segment_bytes
        self._locker = locker
        self._pause = pause
        self._mapping = threading.Lock()  # held while a segment is mapped and locked, which may take a while
        self._lock = threading.Lock()  # guards the dictionary, and is never held for long
        self._mappings: dict[int, _Mapping] = {}

    def map(self, numbers: Sequence[int], *, late: bool) -> None:
        """Map and lock segments that are not mapped yet.

        Args:
            numbers: of the segments.
            late: something may be executing, so memory is locked in small steps with pauses.

        Raises:
            HostPoolError: a file is missing or may not be trusted.
        """
        with self._mapping:
            for number in numbers:
                if number not in self._mappings:
                    mapping = self._map(number, late=late)
                    with self._lock:
                        self._mappings[number] = mapping

    def mapped(self, runs: Sequence[Run]) -> bool:
        """Whether the segments of these runs are mapped, and locked as far as they can be."""
        with self._lock:
            return all(run.segment in self._mappings for run in runs)

    def _map(self, number: int, *, late: bool) -> _Mapping:
        fd = self._directory.open_segment(number, nbytes=self._nbytes, writable=False)
        try:
            memory = mmap.mmap(fd, self._nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        mapping = _Mapping(memory, address, {})
        if self._locker is not None:
            step = PIECE_BYTES if late else self._nbytes
            for offset in range(0, self._nbytes, step):
                nbytes = min(step, self._nbytes - offset)
                if late and offset:
                    self._pause(PAUSE_SECONDS)
                if self._locker.lock(address + offset, nbytes):
                    mapping.locked[offset] = nbytes
        return mapping

    def pieces(self, runs: Sequence[Run], nbytes: int) -> Iterator[tuple[int, memoryview, bool]]:
        """The first `nbytes` of these runs: offset in the region, bytes, and whether they are page-locked."""
        done = 0
        for run in runs:
            with self._lock:
                mapping = self._mappings[run.segment]
            cursor = run.first * PAGE_BYTES
            end = min(cursor + run.nbytes, cursor + nbytes - done)
            step = self._nbytes if mapping.locked.get(0) == self._nbytes else PIECE_BYTES
            while cursor < end:
                begin = cursor // step * step
                stop = min(end, begin + step)
                locked = stop <= begin + mapping.locked.get(begin, 0)
                yield done, memoryview(mapping.memory)[cursor:stop], locked
                done += stop - cursor
                cursor = stop

    @contextlib.contextmanager
    def window(self, runs: Sequence[Run]) -> Iterator[memoryview]:
        """The pages of these runs as contiguous writable memory, for as long as the context lasts.

        Nobody may hold the memory, or a part of it, afterwards.
        """
        total = sum(run.nbytes for run in runs)
        base = _mmap(None, total, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        try:
            offset = 0
            for run in runs:
                fd = self._directory.open_segment(run.segment, nbytes=self._nbytes, writable=True)
                try:
                    _mmap(
                        base + offset,
                        run.nbytes,
                        mmap.PROT_READ | mmap.PROT_WRITE,
                        mmap.MAP_SHARED | _MAP_FIXED,
                        fd,
                        run.first * PAGE_BYTES,
                    )
                finally:
                    os.close(fd)
                offset += run.nbytes
            view = memoryview((ctypes.c_ubyte * total).from_address(base)).cast("B")
            yield view
            view.release()
        finally:
            _libc.munmap(base, total)

    def forget(self) -> None:
        """Unlock and unmap segments that are not in the table any more: nobody has a region in them.

        Something may be executing, which unlocking holds up like locking, so it is done in the same steps with pauses.

        Raises:
            HostPoolError: the table is damaged.
        """
        with self._mapping:
            # Read here: an earlier look would not know what another thread has added and mapped since.
            known = self._directory.table.read().segments
            with self._lock:
                gone = [self._mappings.pop(number) for number in set(self._mappings) - set(known)]
            for mapping in gone:
                self._unmap(mapping, late=True)

    def close(self) -> None:
        """Unlock and unmap everything."""
        with self._mapping, self._lock:
            mappings, self._mappings = self._mappings, {}
        for mapping in mappings.values():
            self._unmap(mapping, late=False)

    def _unmap(self, mapping: _Mapping, *, late: bool) -> None:
        if self._locker is not None:
            for offset in mapping.locked:
                self._locker.unlock(mapping.address + offset)
                if late:
                    self._pause(PAUSE_SECONDS)
        # Chunks of a transfer that has ended may still be referred to; with the last of them the mapping goes.
        with contextlib.suppress(BufferError):
            mapping.memory.close()


def map_at_once(piece: memoryview) -> None:
    """Map a piece of a window that is about to be written to: a third of the time of a fill went into faults of 4 KiB.

    Reading a mapping in maps 16 of its pages by one fault, writable, because they are there and shared; writing to it maps
    one. An old kernel refuses, and then it goes slower.
    """
    _advise(piece, _MADV_POPULATE_READ)


def unmap_early(piece: memoryview) -> None:
    """Unmap a piece of a window that is written and verified, from the thread that did it: unmapping whole windows in the
    end took a seventh of the time of a fill, in one thread.

    The file keeps the bytes. Where neighbours still write to the pages at its ends, these are mapped again by a fault.
    """
    _advise(piece, mmap.MADV_DONTNEED)


def _advise(piece: memoryview, advice: int) -> None:
    if len(piece):
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(piece))
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        _libc.madvise(start, address + len(piece) - start, advice)


def _mmap(address: int | None, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, nbytes, protection, flags, fd, offset)
    if result == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mapping {nbytes} bytes of a segment: {os.strerror(code)}")
    return int(result)
