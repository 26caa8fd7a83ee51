# SPDX-License-Identifier: Apache-2.0
"""One fill of one extent: chunks in, pieces to the device with the gate in between, views built while the link works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout, Placed
from ballast_worker.device.backend import Backend
from ballast_worker.device.cover import Cover
from ballast_worker.device.gate import UploadGate

VIEWS_PER_PIECE = 4
"""Views built after each piece is sent: at most 0.1 ms of Python. A piece in flight takes 0.3 ms, within which the next has
to be sent, or the link waits."""


class Filling:
    """A fill that runs once, on one thread.

    Invariant: `_unreleased` holds, oldest first, every chunk that was taken from the iterator and not released, with the
    count of bytes sent up to its end; each is released exactly once, however the fill ends.

    Args:
        backend: where the bytes go.
        gate: asked before each piece.
        base: offset of the extent in the block.
        layout: of the model.
        progress: called with the bytes that the host has seen arrive.
        meanwhile: called after each piece was sent; short work that nobody waits for.
    """

    def __init__(
        self,
        backend: Backend,
        gate: UploadGate,
        base: int,
        layout: Layout,
        progress: Callable[[int], None] | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._upload = backend.upload()
        self._piece_bytes = backend.piece_bytes
        self._gate = gate
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
                    self._gate.wait_clear()
                    seen = self._upload.send(self._base + offset, piece, locked=chunk.locked)
                    self._sent += len(piece)
                    self._release(seen)
                    self._progress(seen)
                    views.extend(view(placed) for placed in islice(missing, VIEWS_PER_PIECE))
                    self._meanwhile()
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

    def _release(self, seen: int) -> None:
        """Release every chunk whose last byte has been seen to arrive."""
        while self._unreleased and self._unreleased[0][0] <= seen:
            _, chunk = self._unreleased.popleft()
            if chunk.release is not None:
                chunk.release()

    def _release_all(self) -> None:
        while self._unreleased:
            _, chunk = self._unreleased.popleft()
            if chunk.release is not None:
                chunk.release()
