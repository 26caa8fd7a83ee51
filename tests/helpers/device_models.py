# SPDX-License-Identifier: Apache-2.0
"""Models for tests of device memory: packed random weights, loads, and executions that run until they are told to end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import Layout, TensorSpec, numpy_dtype, pack
from ballast_worker.device.memory import DeviceMemory, Lease

PATIENCE = 60
"""Seconds after which a test gives up; nothing waits so long when the code is right."""


class Weights:
    """Packed weights with contents that depend on the seed."""

    def __init__(self, specs: Sequence[TensorSpec], seed: int = 0) -> None:
        pattern = np.random.default_rng(seed).integers(0, 60, 65521, np.uint8)  # a prime: no period of any alignment
        self.layout: Layout = pack(specs)
        self.image = np.zeros(self.layout.nbytes, np.uint8)
        for placed in self.layout.tensors:
            raw = np.resize(pattern, placed.spec.nbytes)
            self.image[placed.offset : placed.end] = raw & 1 if placed.spec.dtype == "bool" else raw

    @classmethod
    def of_bytes(cls, nbytes: int, seed: int = 0) -> Weights:
        """One float32 tensor of so many bytes."""
        return cls([TensorSpec("w", "float32", (nbytes // 4,))], seed)

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """A tensor as numpy sees it."""
        placed = self.layout.tensors[index]
        raw = self.image[placed.offset : placed.end]
        return raw.view(numpy_dtype(placed.spec.dtype)).reshape(placed.spec.shape)

    def chunks(self, size: int | None = None) -> Iterator[Chunk]:
        """The image in pieces of `size` bytes, or whole."""
        step = size or max(1, self.layout.nbytes)
        for offset in range(0, self.layout.nbytes, step):
            yield Chunk(offset, self.image.data[offset : offset + step])


def load(memory: DeviceMemory, key: str, weights: Weights, *, pinned: bool = False) -> None:
    """Place, fill and activate."""
    memory.place(key, weights.layout, pinned=pinned)
    memory.fill(key, weights.chunks())
    memory.activate(key)


def check(memory: DeviceMemory, key: str, weights: Weights) -> None:
    """What JAX sees through a lease is what was packed, bit for bit."""
    lease = memory.lease(key)
    assert len(lease.arrays) == len(weights.layout.tensors)
    for index, array in enumerate(lease.arrays):
        expected = weights.array(index)
        seen = np.asarray(array)
        assert seen.dtype == expected.dtype
        assert seen.shape == expected.shape
        assert np.array_equal(seen.reshape(-1).view(np.uint8), expected.reshape(-1).view(np.uint8))
    lease.release()


@contextmanager
def executing(lease: Lease) -> Iterator[Any]:
    """A JAX execution that reads the first array of a lease only after the block has ended.

    Yields a future of the sum that it computes.
    """
    started, proceed = threading.Event(), threading.Event()

    def wait() -> np.ndarray[Any, Any]:
        started.set()
        assert proceed.wait(PATIENCE)
        return np.array(1, np.float32)

    @jax.jit
    def total(weights: Any) -> Any:
        return jnp.sum(weights * jax.pure_callback(wait, np.float32(0)))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: float(total(lease.arrays[0]).block_until_ready()))
        assert started.wait(PATIENCE)
        try:
            yield future
        finally:
            proceed.set()
