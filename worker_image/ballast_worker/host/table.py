# SPDX-License-Identifier: Apache-2.0
"""The table of a host pool: which segments there are, and which regions lie where; and how it is written as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from ballast_worker.bundle.files import FileIdentity
from ballast_worker.host.pages import Run

MAX_SLOTS = 1 << 16
MAX_NAME_BYTES = 255

_TABLE = struct.Struct("<III")  # next segment, segments, entries
_ENTRY = struct.Struct("<IB3xIQ32s5qIH2x")  # slot, state, layout version, bytes, digest, identity, runs, length of name
_RUN = struct.Struct("<III")


class State(IntEnum):
    """Whether a region can be used."""

    FILLING = 1
    READY = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One region.

    Attributes:
        slot: its lock bytes and its place in the progress area; reused when the region is gone.
        state: published or not.
        layout_version: of the packing.
        digest: of the weights, 32 bytes.
        nbytes: of the packed weights.
        identity: the file it was filled from; zeros while it is being filled.
        name: of the bundle, for people.
        runs: its pages in order.
    """

    slot: int
    state: State
    layout_version: int
    digest: bytes
    nbytes: int
    identity: FileIdentity
    name: str
    runs: tuple[Run, ...]

    @property
    def host_bytes(self) -> int:
        """Bytes of its pages."""
        return sum(run.nbytes for run in self.runs)


@dataclass(frozen=True, slots=True)
class Table:
    """Everything a pool knows, immutable.

    Attributes:
        generation: grows by one with each change.
        next_segment: numbers of segments are never used again.
        segments: numbers of the segments.
        entries: by slot.
    """

    generation: int
    next_segment: int
    segments: tuple[int, ...]
    entries: tuple[Entry, ...]

    def find(self, digest: bytes, layout_version: int) -> Entry | None:
        """The region of these weights in this packing."""
        for entry in self.entries:
            if entry.digest == digest and entry.layout_version == layout_version:
                return entry
        return None

    def with_entry(self, entry: Entry) -> Table:
        """The table with this entry in its slot."""
        others = tuple(other for other in self.entries if other.slot != entry.slot)
        return replace(self, entries=(*others, entry))

    def without(self, slots: set[int]) -> Table:
        """The table without the entries of these slots."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.slot not in slots))

    def free_slots(self) -> Iterator[int]:
        """Slots without an entry, the lowest first."""
        used = {entry.slot for entry in self.entries}
        return (slot for slot in range(MAX_SLOTS) if slot not in used)


EMPTY = Table(generation=0, next_segment=1, segments=(), entries=())


def dump(table: Table) -> bytes:
    """The table without its generation."""
    parts = [
        _TABLE.pack(table.next_segment, len(table.segments), len(table.entries)),
        struct.pack(f"<{len(table.segments)}I", *table.segments),
    ]
    for entry in table.entries:
        name = entry.name.encode()[:MAX_NAME_BYTES]
        file = entry.identity
        parts.append(
            _ENTRY.pack(
                entry.slot,
                entry.state,
                entry.layout_version,
                entry.nbytes,
                entry.digest,
                file.device,
                file.inode,
                file.size,
                file.mtime_ns,
                file.ctime_ns,
                len(entry.runs),
                len(name),
            )
        )
        parts.append(name)
        parts += [_RUN.pack(run.segment, run.first, run.count) for run in entry.runs]
    return b"".join(parts)


def parse(body: bytes, generation: int) -> Table:
    """What `dump` wrote, as of a generation."""
    next_segment, segment_count, entry_count = _TABLE.unpack_from(body)
    offset = _TABLE.size
    segments = struct.unpack_from(f"<{segment_count}I", body, offset)
    offset += 4 * segment_count
    entries = []
    for _ in range(entry_count):
        slot, state, version, nbytes, digest, *file, runs, length = _ENTRY.unpack_from(body, offset)
        offset += _ENTRY.size
        name = body[offset : offset + length].decode("utf-8", "replace")
        offset += length
        pages = tuple(Run(*_RUN.unpack_from(body, offset + index * _RUN.size)) for index in range(runs))
        offset += runs * _RUN.size
        entries.append(Entry(slot, State(state), version, digest, nbytes, FileIdentity(*file), name, pages))
    return Table(generation, next_segment, segments, tuple(entries))
