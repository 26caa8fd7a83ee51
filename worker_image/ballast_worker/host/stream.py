# SPDX-License-Identifier: Apache-2.0
"""Weights without a host copy: read ahead into a ring of buffers, and gone when the device has them."""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout
from ballast_worker.bundle.weights import WeightsFile
from ballast_worker.host.segments import PageLocker

RING_BYTES = 64 << 20
"""What a worker takes."""
LARGEST_BUFFER_BYTES = 8 << 20
BUFFERS = 8
"""At least; a larger ring has more."""
RESERVED = 2
"""Buffers that only the stream that is being copied may take: it always moves on, however many read ahead."""


class _ClosedError(Exception):
    """The stream is not wanted any more."""


class Ring:
    """Buffers that streams take turns with. One stream at a time is copied to the device; the others read ahead."""

    def __init__(self, nbytes: int, *, locker: PageLocker | None) -> None:
        """Take the memory and lock it.

        Args:
            nbytes: of all buffers; at least 8 pages of 4 KiB are taken.
            locker: page-locks the memory, whole.
        """
        share = nbytes // BUFFERS // mmap.PAGESIZE * mmap.PAGESIZE
        self.slot_bytes = max(mmap.PAGESIZE, min(LARGEST_BUFFER_BYTES, share))
        count = max(BUFFERS, nbytes // self.slot_bytes)
        # Taken now, so that whatever is allocated later finds what is left of a memory limit.
        self._memory = mmap.mmap(
            -1, count * self.slot_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        )
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._locker = locker
        self.locked = locker is not None and locker.lock(self._address, count * self.slot_bytes)
        self._changed = threading.Condition(threading.Lock())
        self._free = list(range(count))
        # Streams that read, and how many buffers each of them has.
        self._held: dict[Stream, int] = {}

    def enter(self, stream: Stream) -> None:
        """A stream begins to read."""
        with self._changed:
            self._held[stream] = 0

    def leave(self, stream: Stream) -> None:
        """A stream has ended, or was closed."""
        with self._changed:
            self._held.pop(stream, None)
            self._changed.notify_all()

    def take(self, stream: Stream) -> int:
        """A free buffer for a stream; waits for one.

        Raises:
            _ClosedError: the stream has been closed.
        """
        with self._changed:
            while True:
                if stream.closed:
                    raise _ClosedError
                if self._may_take(stream):
                    self._held[stream] = self._held.get(stream, 0) + 1
                    return self._free.pop()
                self._changed.wait()

    def _may_take(self, stream: Stream) -> bool:
        if stream.copied:
            return bool(self._free)
        # Nobody reads far ahead while others cannot begin.
        first = not self._held.get(stream, 0)
        beginners = 0 if first else sum(not held for held in self._held.values())
        return len(self._free) > RESERVED + beginners

    def give(self, slot: int, stream: Stream) -> None:
        """Give back a buffer that a stream had."""
        with self._changed:
            self._free.append(slot)
            if stream in self._held:
                self._held[stream] -= 1
            self._changed.notify_all()

    def wake(self) -> None:
        """A stream has begun to be copied, or was closed."""
        with self._changed:
            self._changed.notify_all()

    def buffer(self, slot: int) -> memoryview:
        """The memory of a buffer."""
        return memoryview(self._memory)[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def close(self) -> None:
        """Unlock the memory. No stream may be reading."""
        if self.locked and self._locker is not None:
            self._locker.unlock(self._address)
            self.locked = False


class Stream:
    """Implements `store.Transfer` without a copy. A thread of its own reads ahead as far as the ring has room."""

    kept = False

    def __init__(self, ring: Ring, file: WeightsFile, layout: Layout) -> None:
        """Own `file` from now on, and begin to read."""
        self._ring = ring
        self._file = file
        self._layout = layout
        self.closed = False
        self.copied = False
        # Guards the end of the stream: what the reader puts in after `close` would never be given back.
        self._lock = threading.Lock()
        self._pieces: queue.SimpleQueue[tuple[int, memoryview, int] | Exception | None] = queue.SimpleQueue()
        self._current = -1
        ring.enter(self)
        self._reader = threading.Thread(target=self._read, name="stream", daemon=True)
        self._reader.start()

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`. The digest is verified after the last chunk."""
        self.copied = True
        self._ring.wake()
        while True:
            piece = self._pieces.get()
            if piece is None:
                return
            if isinstance(piece, Exception):
                raise piece
            offset, data, slot = piece
            yield Chunk(
                offset, data.toreadonly(), locked=self._ring.locked, release=partial(self._ring.give, slot, self)
            )

    def close(self) -> None:
        """See `Transfer.close`. The reader ends by itself, after a read that may be under way."""
        with self._lock:
            self.closed = True
        self._ring.wake()
        while not self._pieces.empty():
            piece = self._pieces.get()
            if isinstance(piece, tuple):
                self._ring.give(piece[2], self)

    @property
    def reading(self) -> bool:
        """Whether the reader has not ended."""
        return self._reader.is_alive()

    def join(self) -> None:
        """Wait until the reader has ended."""
        self._reader.join()

    def _read(self) -> None:
        end: Exception | None = None
        try:
            for offset, data in self._file.chunks(self._layout, self._ring.slot_bytes, buffer=self._buffer):
                slot, self._current = self._current, -1
                with self._lock:
                    if not self.closed:
                        self._pieces.put((offset, data, slot))
                        continue
                self._ring.give(slot, self)
                break
        except _ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 - whoever asks for the chunks gets it
            end = error
        finally:
            if self._current >= 0:
                self._ring.give(self._current, self)
            self._file.close()
            self._ring.leave(self)
            self._pieces.put(end)

    def _buffer(self, nbytes: int) -> memoryview:
        del nbytes
        self._current = self._ring.take(self)
        return self._ring.buffer(self._current)
