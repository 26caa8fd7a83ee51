# SPDX-License-Identifier: Apache-2.0
"""What is measured on: which device, how large the models are, where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model of benchmarks: transformer-like layers of nine tensors.

    Attributes:
        name: of its bundle.
        nbytes: of its weights, about.
        layers: how many.
    """

    name: str
    nbytes: int
    layers: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes and durations.

    Attributes:
        big: the bundle whose load is compared with the link.
        small: the model whose load is all latency.
        mix: models of many sizes.
        slab: the model of which the compacted arena is full.
        slabs: how many copies of it, under names of their own.
        churn: models that come and go; each is served under `copies` names.
        copies: see `churn`.
        churn_loads: loads of the churn.
        columns: of the square weights of the models that compute.
        input_rows: rows of so many columns that one request to the model `inputs` brings from the host.
        requests_per_second: to the model `inputs` while others load.
        seconds: how long each arm with traffic is measured.
        repeats: of what is measured a few times.
        small_loads: loads of `small`.
        link_bytes: copied at once to measure the link.
        pool_bytes: of the host pool whose start is measured.
    """

    big: ModelSize
    small: ModelSize
    mix: tuple[ModelSize, ...]
    slab: ModelSize
    slabs: int
    churn: tuple[ModelSize, ...]
    copies: int
    churn_loads: int
    columns: int
    input_rows: int
    requests_per_second: int
    seconds: float
    repeats: int
    small_loads: int
    link_bytes: int
    pool_bytes: int

    def sizes(self) -> dict[str, ModelSize]:
        """Every bundle but those that compute, by name."""
        return {size.name: size for size in (self.big, self.small, self.slab, *self.mix, *self.churn)}


def _mix(unit: int, count: int) -> tuple[ModelSize, ...]:
    return tuple(ModelSize(f"mix-{index}", unit * 4**index, 1 + 2 * index) for index in range(count))


def _churn(unit: int) -> tuple[ModelSize, ...]:
    # No size is a multiple of another, so that what one leaves seldom fits the next.
    factors = (1.3, 2.9, 5.3, 8.3, 12.1, 17.9, 26.3, 41.9)
    return tuple(ModelSize(f"churn-{index}", int(unit * factor), 1) for index, factor in enumerate(factors))


SCALES = {
    "full": Scale(
        big=ModelSize("big", 8_000_000_000, 71),
        small=ModelSize("small", MIB, 1),
        mix=_mix(MIB, 6),
        slab=ModelSize("slab", GIB, 9),
        slabs=20,
        churn=_churn(MIB),
        copies=3,
        churn_loads=10_000,
        columns=1024,
        input_rows=150,
        requests_per_second=500,
        seconds=4.0,
        repeats=5,
        small_loads=200,
        link_bytes=GIB,
        pool_bytes=8 * GIB,
    ),
    "cpu": Scale(
        big=ModelSize("big", 100_000_000, 12),
        small=ModelSize("small", MIB, 1),
        mix=_mix(MIB, 3),
        slab=ModelSize("slab", 16 * MIB, 9),
        slabs=8,
        churn=_churn(256 * KIB),
        copies=3,
        churn_loads=1_000,
        columns=16,
        input_rows=9600,
        requests_per_second=500,
        seconds=10.0,
        repeats=5,
        small_loads=200,
        link_bytes=100_000_000,
        pool_bytes=128 * MIB,
    ),
    "small": Scale(
        big=ModelSize("big", 8_000_000, 3),
        small=ModelSize("small", 64 * KIB, 1),
        mix=_mix(64 * KIB, 2),
        slab=ModelSize("slab", MIB, 2),
        slabs=6,
        churn=_churn(32 * KIB)[:3],
        copies=3,
        churn_loads=60,
        columns=64,
        input_rows=4,
        requests_per_second=100,
        seconds=0.3,
        repeats=2,
        small_loads=5,
        link_bytes=8 * MIB,
        pool_bytes=8 * MIB,
    ),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how large.

    Attributes:
        backend: cpu or cuda.
        scale: sizes.
        folder: bundles, executables, and what the parts write.
        pool: directory of the host pools.
    """

    backend: Literal["cpu", "cuda"]
    scale: Scale
    folder: Path
    pool: Path

    def bundle(self, name: str) -> Path:
        """The directory of a bundle."""
        return self.folder / "bundles" / name
