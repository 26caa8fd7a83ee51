# SPDX-License-Identifier: Apache-2.0
"""Whole tensors, in a wanted order, out of chunks that come in any order and size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout, numpy_dtype
from ballast_worker.device.cover import Cover


class Gathering:
    """Puts tensors together; runs once, on one thread.

    A chunk that has a `release` is copied and released before the next is taken, so that a ring of two buffers suffices.
    One without stays as it is: a tensor that lies in it whole is not copied. Host memory is taken for tensors that arrive
    before their turn, and for those that lie across chunks.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cover = Cover(layout)
        # By index: the bytes of tensors that have begun to arrive, and how many are still to come.
        self._data: dict[int, np.ndarray[Any, Any]] = {}
        self._missing = [placed.spec.nbytes for placed in layout.tensors]
        self._filled = [index for index, placed in enumerate(layout.tensors) if placed.spec.nbytes]
        self._offsets = [layout.tensors[index].offset for index in self._filled]

    def run(self, chunks: Iterable[Chunk], order: Sequence[int]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Yield (index, array) of every tensor, in this order of indices.

        Raises:
            DeviceMemoryError: the chunks do not cover the layout exactly once.
        """
        turn = 0
        for chunk in chunks:
            try:
                self._cover.add(chunk)
                self._receive(chunk)
            finally:
                if chunk.release is not None:
                    chunk.release()
            while turn < len(order) and not self._missing[order[turn]]:
                yield self._take(order[turn])
                turn += 1
        self._cover.check()
        for index in order[turn:]:
            yield self._take(index)

    def _receive(self, chunk: Chunk) -> None:
        source = np.frombuffer(chunk.data, np.uint8) if chunk.data.nbytes else np.empty(0, np.uint8)
        end = chunk.offset + source.nbytes
        first = max(0, bisect_right(self._offsets, chunk.offset) - 1)
        for index in self._filled[first:]:
            placed = self._layout.tensors[index]
            if placed.offset >= end:
                break
            low, high = max(placed.offset, chunk.offset), min(placed.end, end)
            if low >= high:
                continue
            part = source[low - chunk.offset : high - chunk.offset]
            if chunk.release is None and part.nbytes == placed.spec.nbytes:
                self._data[index] = part
            else:
                data = self._data.get(index)
                if data is None:
                    data = self._data[index] = np.empty(placed.spec.nbytes, np.uint8)
                data[low - placed.offset : high - placed.offset] = part
            self._missing[index] -= part.nbytes

    def _take(self, index: int) -> tuple[int, np.ndarray[Any, Any]]:
        spec = self._layout.tensors[index].spec
        data = self._data.pop(index, None)
        raw = np.empty(0, np.uint8) if data is None else data
        return index, raw.view(numpy_dtype(spec.dtype)).reshape(spec.shape)
