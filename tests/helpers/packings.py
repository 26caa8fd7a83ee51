# SPDX-License-Identifier: Apache-2.0
"""Figures of a pack that only tests ask for."""

from __future__ import annotations

from ballast_operator.placement.model import Packing, WorkerLoad


def held(load: WorkerLoad) -> int:
    """Bytes of weights and code of everything on a worker."""
    return load.pinned_bytes + load.swapped_bytes + load.code_bytes


def crowded(packing: Packing) -> bool:
    """Whether the models of some worker do not all fit on its device at once."""
    return any(load.capacity_bytes is not None and held(load) > load.capacity_bytes for load in packing.loads.values())


def highest_score(packing: Packing) -> float:
    """The score of the most loaded worker; 0.0 without workers."""
    return max((load.score for load in packing.loads.values()), default=0.0)
