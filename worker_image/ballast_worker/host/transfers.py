# SPDX-License-Identifier: Apache-2.0
"""Transfers out of host copies."""

from __future__ import annotations

from collections.abc import Iterator

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.host.locks import Locks
from ballast_worker.host.segments import Segments
from ballast_worker.host.table import Entry


class RegionTransfer:
    """Implements `store.Transfer` from a published region; its shared lock keeps the region where it is."""

    kept = True

    def __init__(self, segments: Segments, entry: Entry, lock: Locks) -> None:
        """Own `lock`, which holds the region's byte, from now on. The region's segments are mapped."""
        self._segments = segments
        self._entry = entry
        self._lock = lock

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`."""
        for offset, data, locked in self._segments.pieces(self._entry.runs, self._entry.nbytes):
            yield Chunk(offset, data, locked=locked)

    def close(self) -> None:
        """See `Transfer.close`."""
        self._lock.close()


class NothingToTransfer:
    """Implements `store.Transfer` for a model without weights."""

    kept = True

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`."""
        return iter(())

    def close(self) -> None:
        """See `Transfer.close`."""
