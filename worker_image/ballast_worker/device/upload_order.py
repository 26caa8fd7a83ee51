# SPDX-License-Identifier: Apache-2.0
"""In which order a model's tensors are uploaded, so that XLA's allocator has a chunk for each. Pure but for a trial.

Ascending sizes waste nothing of one block, since each tensor but the last leaves at least as much as the next one takes.
Over several blocks any order may be the only one that fits, so that three are tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballast_worker.bundle.layout import Layout
from ballast_worker.device.bfc_replay import BfcReplay


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """An order of a layout's tensors that have elements.

    Attributes:
        tensors: their indices.
        sizes: their bytes, in this order.
    """

    tensors: tuple[int, ...]
    sizes: tuple[int, ...]


def orders(layout: Layout) -> list[UploadOrder]:
    """The given order, ascending and descending."""
    given = [index for index, placed in enumerate(layout.tensors) if placed.spec.nbytes]
    ascending = sorted(given, key=lambda index: layout.tensors[index].spec.nbytes)
    return [
        UploadOrder(tuple(order), tuple(layout.tensors[index].spec.nbytes for index in order))
        for order in (given, ascending, ascending[::-1])
    ]


def fitting_order(replay: BfcReplay, layout: Layout, scratch: int) -> UploadOrder | None:
    """The order that takes the fewest bytes, then leaves the largest block, then comes first in `orders`; None when none
    fits and leaves a free block of `scratch` bytes. The replay is used for trials and is as before.
    """
    best: tuple[int, int] | None = None
    found = None
    for order in orders(layout):
        offsets = replay.allocate_all(order.sizes)
        if offsets is None:
            continue
        largest = replay.largest_free
        taken = replay.free_all(offsets)
        if largest >= scratch and (best is None or (taken, -largest) < best):
            best, found = (taken, -largest), order
    return found
