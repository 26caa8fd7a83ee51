# SPDX-License-Identifier: Apache-2.0
"""Proof that the chunks of a fill cover a layout exactly once."""

from __future__ import annotations

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout
from ballast_worker.device.memory import DeviceMemoryError


class Cover:
    """Collects the ranges of chunks, in any order."""

    def __init__(self, layout: Layout) -> None:
        self._nbytes = layout.nbytes
        self._ranges: list[tuple[int, int]] = []

    def add(self, chunk: Chunk) -> None:
        """Take note of a chunk.

        Raises:
            DeviceMemoryError: it leaves the layout.
        """
        end = chunk.offset + chunk.data.nbytes
        if chunk.offset < 0 or end > self._nbytes:
            raise DeviceMemoryError(
                f"a chunk covers {chunk.offset} to {end} of a model that has {self._nbytes} packed bytes"
            )
        self._ranges.append((chunk.offset, end))

    def check(self) -> None:
        """After the last chunk.

        Raises:
            DeviceMemoryError: there is a gap or an overlap.
        """
        position = 0
        for low, high in sorted(self._ranges):
            if low != position:
                break
            position = high
        if position != self._nbytes or sum(high - low for low, high in self._ranges) != self._nbytes:
            raise DeviceMemoryError(
                f"the chunks do not cover the model's {self._nbytes} packed bytes exactly once: "
                f"the first gap or overlap is at {position}"
            )
