# SPDX-License-Identifier: Apache-2.0
"""One model's tensors into XLA's allocator, in a given order, two on their way at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_pool import Pool
from ballast_worker.device.gathering import Gathering
from ballast_worker.device.upload_order import UploadOrder


def upload(
    pool: Pool, layout: Layout, order: UploadOrder, chunks: Iterable[Chunk], progress: Callable[[int], None]
) -> list[Any]:
    """Allocate and copy every tensor; returns the arrays, in the layout's order, when the host has seen the end.

    A failure gives back what was uploaded.

    Raises:
        DeviceMemoryError: the chunks do not cover the layout exactly once.
        DeviceError: the allocator or a copy failed.
    """
    empty = [index for index, placed in enumerate(layout.tensors) if not placed.spec.nbytes]
    arrays: list[Any] = [None] * len(layout.tensors)
    previous: tuple[Any, Any] | None = None
    done = 0
    try:
        for index, data in Gathering(layout).run(chunks, [*order.tensors, *empty]):
            arrays[index] = pool.put(data)
            if previous is not None:
                pool.wait(previous[0])
            previous = arrays[index], data  # the copy reads it still
            done += data.nbytes
            progress(done)
        if previous is not None:
            pool.wait(previous[0])
    except BaseException:
        for array in arrays:
            if array is not None:
                with suppress(DeviceError):
                    pool.wait(array)  # until its copy has ended, the allocator does not take it back
                pool.free(array)
        raise
    progress(layout.nbytes)
    return arrays
