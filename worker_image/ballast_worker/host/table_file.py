# SPDX-License-Identifier: Apache-2.0
"""The file of a pool's table, and what is noted of each region outside it.

The file has a header that never changes and two copies of the table. A change is written to the older copy, body first
and then its head with the next generation and a checksum; the highest generation with a right checksum is the table. A
crash in between leaves the other copy, and a reader who was overtaken sees a wrong checksum and reads again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.table import EMPTY, Entry, State, Table, dump, parse

FORMAT = 1
MAGIC = b"BALLASTP"

MAX_COPY_BYTES = 32 << 20
FIRST_COPY_BYTES = 64 << 10
"""Allocated for each copy at the start, so that a full file system does not stop the first changes."""

_HEADER = struct.Struct("<8sIQ36sI")  # magic, format, segment bytes, boot id, checksum of these
_HEAD = struct.Struct("<QQII")  # generation, length, checksum of the body, checksum of these

_COPIES = 4096
_MARKS = _COPIES + 2 * MAX_COPY_BYTES
_MARK = struct.Struct("<QQ")
"""Of each slot, outside the copies because they change with each load and each read: bytes filled, time of last load."""


class TableFile:
    """The open table file. Reading needs no lock; writing needs the table's lock."""

    def __init__(self, fd: int, shown: str) -> None:
        """Use an open file; the caller closes it.

        Args:
            fd: open for reading and writing.
            shown: its path in messages.
        """
        self._fd = fd
        self._shown = shown
        self._cached = EMPTY
        self._ready: tuple[int, Mapping[tuple[bytes, int], Entry]] = (0, {})
        self.segment_bytes = 0

    def initialise(self, *, segment_bytes: int, boot_id: str) -> None:
        """Make it an empty table, whatever it was.

        Raises:
            OSError: no space.
        """
        os.ftruncate(self._fd, 0)
        for copy in (0, 1):
            os.posix_fallocate(self._fd, _COPIES + copy * MAX_COPY_BYTES, FIRST_COPY_BYTES)
        self.write(EMPTY)
        body = _HEADER.pack(MAGIC, FORMAT, segment_bytes, boot_id.encode(), 0)[:-4]
        os.pwrite(self._fd, body + struct.pack("<I", zlib.crc32(body)), 0)
        self.segment_bytes = segment_bytes

    def understood(self, *, boot_id: str) -> str | None:
        """None when the table can be used; else why not."""
        raw = os.pread(self._fd, _HEADER.size, 0)
        if len(raw) < _HEADER.size or raw[:8] != MAGIC:
            return "it is not a table of a host pool"
        _, form, segment_bytes, boot, checksum = _HEADER.unpack(raw)
        if form != FORMAT:
            return f"its format is {form}, and this version of Ballast understands {FORMAT}"
        if zlib.crc32(raw[:-4]) != checksum:
            return "its header is damaged"
        if boot.decode("ascii", "replace") != boot_id:
            return "it was written before the node was started anew"
        self.segment_bytes = segment_bytes
        try:
            self.read()
        except HostPoolError:
            return "both copies of the table are damaged"
        return None

    def read(self) -> Table:
        """The table now.

        Raises:
            HostPoolError: neither copy is whole.
        """
        if (cached := self.cached()) is not None:
            return cached
        for _ in range(1000):
            heads = sorted((head for head in map(self._head, (0, 1)) if head is not None), reverse=True)
            for generation, copy, length, checksum in heads:
                body = os.pread(self._fd, length, _body(copy))
                if len(body) == length and zlib.crc32(body) == checksum:
                    self._cached = parse(body, generation)
                    return self._cached
        raise HostPoolError(
            f"both copies of the table in {self._shown} are damaged: stop the workers that use it and remove it"
        )

    def cached(self) -> Table | None:
        """The table now, if this process has read it already; the same object each time."""
        cached = self._cached
        return cached if cached.generation and self._is_newest(cached) else None

    def ready(self) -> Mapping[tuple[bytes, int], Entry]:
        """Every region that can be used now, by digest and layout version.

        Raises:
            HostPoolError: neither copy is whole.
        """
        table, (generation, ready) = self.read(), self._ready
        if table.generation != generation:
            ready = {(e.digest, e.layout_version): e for e in table.entries if e.state is State.READY}
            self._ready = (table.generation, ready)
        return ready

    def write(self, table: Table) -> Table:
        """Make this the table, which was made from the one there is now; returns it with its generation.

        Raises:
            OSError: no space; the table is as before.
        """
        table = replace(table, generation=table.generation + 1)
        body = dump(table)
        if len(body) > MAX_COPY_BYTES - _HEAD.size:
            raise HostPoolError(f"the table in {self._shown} would take {len(body)} bytes; fewer copies fit into it")
        copy = table.generation % 2
        if _HEAD.size + len(body) > FIRST_COPY_BYTES:
            os.posix_fallocate(self._fd, _COPIES + copy * MAX_COPY_BYTES, _HEAD.size + len(body))
        _write_all(self._fd, body, _body(copy))
        head = _HEAD.pack(table.generation, len(body), zlib.crc32(body), 0)[:-4]
        _write_all(self._fd, head + struct.pack("<I", zlib.crc32(head)), _COPIES + copy * MAX_COPY_BYTES)
        self._cached = table
        return table

    def change(self, change: Callable[[Table], Table]) -> Table:
        """Read, change, write."""
        return self.write(change(self.read()))

    def mark(self, slot: int, *, filled: int, loaded_ns: int) -> None:
        """Note how far a fill is and when the region was last loaded from. Never fails: without it, others are only less
        patient and evict in a worse order.
        """
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _MARK.pack(filled, loaded_ns), _MARKS + _MARK.size * slot)

    def marks(self, slot: int) -> tuple[int, int]:
        """Bytes filled so far, and when the region was last loaded from, in nanoseconds of the monotonic clock."""
        raw = os.pread(self._fd, _MARK.size, _MARKS + _MARK.size * slot)
        filled, loaded_ns = _MARK.unpack(raw.ljust(_MARK.size, b"\0"))
        return filled, loaded_ns

    def last_loads(self, slots: Sequence[int]) -> dict[int, int]:
        """When each of these regions was last loaded from, as `marks` says it, by one read for all."""
        raw = os.pread(self._fd, _MARK.size * (max(slots, default=-1) + 1), _MARKS)
        raw = raw.ljust(_MARK.size * (max(slots, default=-1) + 1), b"\0")
        return {slot: _MARK.unpack_from(raw, _MARK.size * slot)[1] for slot in slots}

    def _is_newest(self, table: Table) -> bool:
        """Whether this is seen to be the table still: the next one would be the other copy, and that is older."""
        other = self._head(1 - table.generation % 2)
        return other is not None and other[0] < table.generation

    def _head(self, copy: int) -> tuple[int, int, int, int] | None:
        raw = os.pread(self._fd, _HEAD.size, _COPIES + copy * MAX_COPY_BYTES)
        if len(raw) < _HEAD.size:
            return None
        generation, length, checksum, own = _HEAD.unpack(raw)
        if zlib.crc32(raw[:-4]) != own or length > MAX_COPY_BYTES:
            return None
        return generation, copy, length, checksum


def _body(copy: int) -> int:
    return _COPIES + copy * MAX_COPY_BYTES + _HEAD.size


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
