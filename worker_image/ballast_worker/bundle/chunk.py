# SPDX-License-Identifier: Apache-2.0
"""A run of packed weight bytes between host and device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of a model's packed bytes in host memory, on its way to the device.

    Attributes:
        offset: where the run starts in the model's layout, in bytes.
        data: the bytes; any contiguous read-only buffer.
        locked: the memory is page-locked, so that the device may copy from it directly and asynchronously.
        release: called exactly once, from the copy thread, when the device no longer reads `data`. None: the bytes stay as
            they are until the transfer ends.
    """

    offset: int
    data: memoryview
    locked: bool = False
    release: Callable[[], None] | None = None
