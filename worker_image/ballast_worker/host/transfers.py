# SPDX-License-Identifier: Apache-2.0
"""Transfers out of host copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.host.segments import Segments
from ballast_worker.host.table import Entry


class RegionTransfer:
    """Implements `store.Transfer` from a published region; its shared lock keeps the region where it is."""

    kept = True

    def __init__(self, segments: Segments, entry: Entry, let_go: Callable[[], None]) -> None:
        """Transfer from a region whose segments are mapped and whose byte is locked; `let_go` unlocks it."""
        self._segments = segments
        self._entry = entry
        self._let_go: Callable[[], None] | None = let_go

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`."""
        for offset, data, locked in self._segments.pieces(self._entry.runs, self._entry.nbytes):
            yield Chunk(offset, data, locked=locked)

    def close(self) -> None:
        """See `Transfer.close`."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()


class NothingToTransfer:
    """Implements `store.Transfer` for a model without weights."""

    kept = True

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`."""
        return iter(())

    def close(self) -> None:
        """See `Transfer.close`."""
