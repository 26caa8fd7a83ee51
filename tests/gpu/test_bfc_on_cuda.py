# SPDX-License-Identifier: Apache-2.0
"""Weights in XLA's allocator on an NVIDIA GPU: the replay against the real one, the conformance suite, a whole worker.

Figures are printed as one JSON line each (run with -s); nothing is asserted about time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.device_conformance import CAPACITY, DeviceMemoryConformance
from helpers.device_models import Weights, check

from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.device import nvml
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_replay import BfcReplay
from ballast_worker.device.memory import NotPlaceableError
from ballast_worker.device.probe import DeviceFacts
from ballast_worker.device.xla_pool import XlaPool, take_pool

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MIB = 1 << 20
OPERATIONS = int(os.environ.get("REPLAY_OPERATIONS", "5000"))


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}))


@pytest.fixture
def pool(gpu: DeviceFacts) -> Iterator[XlaPool]:
    device = jax.local_devices(backend="cuda")[0]
    take_pool(device, 0)
    pool = XlaPool(device)
    assert pool.statistics().in_use == 0, "another test left buffers"
    yield pool
    pool.settle(0)
    assert pool.statistics().in_use == 0, "this test left buffers"


class TestBfcOnCuda(DeviceMemoryConformance):
    @pytest.fixture
    def memory(self, pool: XlaPool) -> Iterator[BfcMemory]:
        memory = BfcMemory(pool, scratch=pool.nbytes - CAPACITY)
        yield memory
        assert memory.exact
        memory.close()


def test_the_pool_is_one_region_of_the_size_that_was_asked_for(pool: XlaPool, gpu: DeviceFacts) -> None:
    assert gpu.total_bytes
    asked = float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]) * gpu.total_bytes
    assert abs(pool.nbytes - asked) <= 2 * MIB
    assert pool.statistics().largest_free == pool.nbytes
    with pytest.raises(DeviceError, match="instead of"):
        take_pool(jax.local_devices(backend="cuda")[0], 2 * pool.nbytes)


def random_sizes(seed: int) -> Iterator[int]:
    """From one byte to 256 MiB, as many of each order of magnitude, and a few that are equal."""
    random = np.random.default_rng(seed)
    while True:
        size = int(2 ** random.uniform(0, 28))
        yield from [size] * int(random.integers(1, 4))


def test_the_allocator_does_what_the_replay_says_in_thousands_of_random_operations(pool: XlaPool) -> None:
    random = np.random.default_rng(3)
    source = np.zeros(257 * MIB, np.uint8)
    replay = BfcReplay(pool.nbytes)
    live: list[tuple[int, Any]] = []
    refused = compared = 0
    multiply = jax.jit(lambda a: jnp.sum(a @ a))
    matrix_side = 512
    sizes = random_sizes(4)
    began = time.perf_counter()
    for turn in range(OPERATIONS):
        if live and random.random() < 0.47:
            offset, array = live.pop(int(random.integers(len(live))))
            pool.free(array)
            replay.free(offset)
            pool.settle(replay.in_use)
        else:
            size = next(sizes)
            expected = replay.allocate(size)
            if expected is None:
                refused += 1  # asking costs ten seconds; the next test does once
                continue
            array = pool.put(source[:size])
            pool.wait(array)
            assert pool.offset(array) == expected, f"operation {turn}: {size} bytes"
            live.append((expected, array))
            compared += 1
        if turn % 50 == 0:
            seen = pool.statistics()
            assert (seen.in_use, seen.largest_free) == (replay.in_use, replay.largest_free), f"operation {turn}"
        if turn % 200 == 0 and replay.largest_free > 64 * MIB:
            multiply(np.ones((matrix_side, matrix_side), np.float32)).block_until_ready()
            pool.settle(replay.in_use)
    report(
        "replay", operations=OPERATIONS, compared=compared, refused=refused, seconds=time.perf_counter() - began,
        live=len(live), fragmentation=1 - replay.largest_free / max(1, replay.capacity - replay.in_use),
    )  # fmt: skip
    assert compared > OPERATIONS // 4
    assert refused > 0, "the pool was never full: the operations are too few or too small"
    for _, array in live:
        pool.free(array)


@pytest.mark.parametrize(
    ("block", "first", "rest"),
    [(160, 100, 0), (200, 100, 100), (199, 100, 0), (228, 200, 0), (329, 200, 129), (328, 200, 128), (327, 200, 0)],
)
def test_the_split_rule_is_the_allocators(pool: XlaPool, block: int, first: int, rest: int) -> None:
    """All in MiB: a hole of `block` gives `first` and leaves `rest`."""
    source = np.zeros(pool.nbytes, np.uint8)
    hole, wall = pool.put(source[: block * MIB]), pool.put(source[:1])
    filler = pool.put(source[: pool.statistics().largest_free])
    pool.wait(filler)
    pool.free(hole)
    pool.settle(pool.nbytes - block * MIB)
    assert pool.statistics().largest_free == block * MIB
    taken = pool.put(source[: first * MIB])
    pool.wait(taken)
    assert pool.statistics().largest_free == rest * MIB
    for array in (taken, wall, filler):
        pool.free(array)


def test_what_the_replay_says_does_not_fit_is_refused_by_the_allocator_after_seconds(pool: XlaPool) -> None:
    source = np.zeros(pool.nbytes, np.uint8)
    replay = BfcReplay(pool.nbytes)
    half = pool.nbytes // 2 + MIB
    whole = replay.allocate(half)
    array = pool.put(source[:half])
    pool.wait(array)
    assert (pool.offset(array), replay.allocate(half)) == (whole, None)
    began = time.perf_counter()
    with pytest.raises(DeviceError, match="XLA's pool"):
        pool.wait(pool.put(source[:half]))
    report("refused allocation", seconds=time.perf_counter() - began)
    pool.free(array)


def test_random_loads_of_models_stay_exact_keep_their_bytes_and_grow_nothing(pool: XlaPool, gpu: DeviceFacts) -> None:
    random = np.random.default_rng(11)
    scratch = 256 * MIB
    memory = BfcMemory(pool, scratch=scratch)
    models = {}
    for index in range(40):
        shapes = (2 ** random.uniform(8, 27, int(random.integers(1, 30)))).astype(int)
        models[str(index)] = Weights([TensorSpec(f"t{i}", "uint8", (int(n),)) for i, n in enumerate(shapes)], index)
    resident: list[str] = []
    evicted = refused = 0
    before = None
    multiply = jax.jit(lambda a: jnp.sum(a.astype(jnp.float32)))
    for turn in range(1500):
        key = str(random.integers(40))
        if key in resident:
            resident.remove(key)
            memory.release(key)
        while key not in resident:
            try:
                memory.place(key, models[key].layout)
            except NotPlaceableError:
                if not resident:
                    refused += 1
                    break
                memory.release(resident.pop(int(random.integers(len(resident)))))
                evicted += 1
                continue
            memory.fill(key, models[key].chunks())
            memory.activate(key)
            resident.append(key)
        assert memory.exact, f"load {turn}"
        assert not memory.starved()
        if key in resident and turn % 10 == 0:
            lease = memory.lease(key)
            multiply(lease.arrays[0]).block_until_ready()
            lease.release()
        if turn % 300 == 299:
            for one in resident:
                check(memory, one, models[one])
            usage = nvml.usage(gpu.uuids)
            if before is None:
                before = usage
            elif usage is not None and before is not None and not usage.processes > 1:
                assert usage.used - before.used <= 4 * MIB
    assert evicted > 0
    assert memory.statistics().leaked_total == 0
    report("random loads", loads=1500, evicted=evicted, refused=refused)
    memory.close()
