# SPDX-License-Identifier: Apache-2.0
"""One fill of one extent: chunks in, pieces to the device, views built while the link works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout, Placed
from ballast_worker.device.backend import Backend
from ballast_worker.device.cover import Cover

VIEWS_PER_PIECE = 8
"""Views built after each piece is sent: about 0.2 ms of Python, a third of what a piece takes on its way."""


class Filling:
    """A fill that runs once, on one thread. Before the next chunk is asked for, every one before the last that waits to be
    released has been.

    Invariant: `_unreleased` holds, oldest first, every chunk that was taken from the iterator and not released, with the
    count of bytes sent up to its end; each is released exactly once, however the fill ends.

    Args:
        backend: where the bytes go.
        base: offset of the extent in the block.
        layout: of the model.
        progress: called with the bytes that the host has seen arrive.
        meanwhile: called after each piece was sent; short work that nobody waits for.
    """

    def __init__(
        self,
        backend: Backend,
        base: int,
        layout: Layout,
        progress: Callable[[int], None] | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._upload = backend.upload()
        self._piece_bytes = backend.piece_bytes
        self._base = base
        self._layout = layout
        self._progress = progress or (lambda _: None)
        self._meanwhile = meanwhile
        self._sent = 0
        self._unreleased: deque[tuple[int, Chunk]] = deque()

    def run(self, chunks: Iterable[Chunk], tensors: Iterable[Placed], view: Callable[[Placed], Any]) -> list[Any]:
        """Copy everything; returns a view of each of the tensors, in order, when the host has seen the end.

        Raises:
            DeviceMemoryError: the chunks do not cover the layout exactly once.
            DeviceError: a copy failed.
        """
        views: list[Any] = []
        missing = iter(tensors)
        cover = Cover(self._layout)
        try:
            for chunk in chunks:
                self._unreleased.append((self._sent + chunk.data.nbytes, chunk))
                cover.add(chunk)
                for offset, piece in self._pieces(chunk):
                    seen = self._upload.send(self._base + offset, piece, locked=chunk.locked)
                    self._sent += len(piece)
                    self._arrived(seen)
                    views.extend(view(placed) for placed in islice(missing, VIEWS_PER_PIECE))
                    self._meanwhile()
                while chunk.release is not None and len(self._unreleased) > 1:
                    self._arrived(self._upload.wait())
            cover.check()
            views.extend(view(placed) for placed in missing)
            self._upload.finish()
            self._progress(self._sent)
        finally:
            try:
                self._upload.finish()
            finally:
                self._release_all()
        return views

    def _pieces(self, chunk: Chunk) -> Iterator[tuple[int, memoryview]]:
        data = chunk.data.cast("B") if chunk.data.nbytes else memoryview(b"")
        for start in range(0, len(data), self._piece_bytes):
            yield chunk.offset + start, data[start : start + self._piece_bytes]

    def _arrived(self, seen: int) -> None:
        """Release every chunk whose last byte has been seen to arrive."""
        self._progress(seen)
        while self._unreleased and self._unreleased[0][0] <= seen:
            _, chunk = self._unreleased.popleft()
            if chunk.release is not None:
                chunk.release()

    def _release_all(self) -> None:
        while self._unreleased:
            _, chunk = self._unreleased.popleft()
            if chunk.release is not None:
                chunk.release()
