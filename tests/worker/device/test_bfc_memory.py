# SPDX-License-Identifier: Apache-2.0
"""What weights in XLA's allocator do beyond the common suite: orders, the scratch block, and an allocator that surprises."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from helpers.device_models import Weights, check, load

from ballast_worker.bundle.layout import TensorSpec, pack
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.bfc_replay import BfcReplay
from ballast_worker.device.memory import DeviceMemoryError, NotPlaceableError
from ballast_worker.device.upload_order import fitting_order

KIB = 1 << 10


def model(*kib: int, seed: int = 0) -> Weights:
    """Tensors of so many KiB, in this order."""
    return Weights([TensorSpec(f"t{i}", "uint8", (size * KIB,)) for i, size in enumerate(kib)], seed)


def blocks(*kib: int) -> BfcReplay:
    """An allocator whose only free blocks have so many KiB."""
    replay = BfcReplay(1 << 30)
    offsets = replay.allocate_all([size * KIB for k in kib for size in (k, 1)])
    assert offsets is not None
    replay.allocate(replay.largest_free)
    replay.free_all(offsets[::2])
    return replay


@pytest.mark.parametrize(
    ("free", "tensors", "order"),
    [
        ((800,), (20, 10, 30), (0, 1, 2)),  # all the same: as given
        ((160,), (100, 60), (1, 0)),  # only ascending fits
        ((100, 150), (60, 100), (1, 0)),  # only descending: 60 first would take 100 whole
        ((100, 60), (60, 100), (0, 1)),
        ((160,), (100, 61), None),
    ],
)
def test_the_order_of_uploads_is_one_that_fits(free, tensors, order):
    replay = blocks(*free)
    before = replay.free_chunks()
    found = fitting_order(replay, pack([TensorSpec(str(i), "uint8", (k * KIB,)) for i, k in enumerate(tensors)]), 0)
    assert (found and found.tensors) == order
    assert replay.free_chunks() == before


def test_tensors_are_uploaded_in_that_order_and_seen_in_the_layouts():
    memory = BfcMemory(SimulatedPool(160 * KIB), scratch=0)
    weights = model(100, 60)
    load(memory, "a", weights)
    check(memory, "a", weights)
    assert memory.exact
    assert memory.statistics().free == 0


def test_tensors_of_one_model_may_lie_in_several_holes():
    pool = SimulatedPool(64 * KIB)
    memory = BfcMemory(pool, scratch=0)
    for index in range(8):
        load(memory, str(index), model(8, seed=index))
    memory.release("1")
    memory.release("5")
    weights = model(8, 8, seed=9)
    load(memory, "two", weights)
    check(memory, "two", weights)
    assert [info.key for info in memory.extents()] == ["0", "two", "2", "3", "4", "two", "6", "7"]
    memory.close()
    assert pool.statistics().in_use == 0


def test_a_block_for_scratch_is_left_or_the_weights_are_refused():
    memory = BfcMemory(SimulatedPool(256 * KIB), scratch=64 * KIB)
    assert memory.statistics().capacity == 192 * KIB
    load(memory, "a", model(96))
    with pytest.raises(NotPlaceableError) as refused:
        memory.place("b", model(97).layout)
    assert (refused.value.free, refused.value.largest_free) == (96 * KIB, 96 * KIB)
    assert not memory.starved()


def test_whoever_executes_is_not_disturbed_by_a_fill():
    memory = BfcMemory(SimulatedPool(256 * KIB), scratch=0)
    load(memory, "a", model(8))
    lease = memory.lease("a")
    memory.place("b", model(8).layout)
    with pytest.raises(DeviceMemoryError, match="while others are executing"):
        memory.fill("b", model(8).chunks())
    lease.release()
    memory.fill("b", model(8).chunks())
    memory.activate("b")


class Surprising(SimulatedPool):
    """Gives the highest place of a free block instead of the lowest, as the replay does not foresee."""

    def put(self, data):
        offset, size = max(self.allocator.free_chunks(), key=lambda chunk: chunk[1])
        at = offset + size - -(-data.nbytes // 256) * 256
        plain = self.allocator.allocate
        self.allocator.allocate = lambda nbytes: (self.allocator.allocate_at(at, nbytes), at)[1]
        try:
            return super().put(data)
        finally:
            self.allocator.allocate = plain


def test_where_the_allocator_does_otherwise_the_replay_is_rebuilt_from_the_addresses():
    pool = Surprising(1024 * KIB)
    memory = BfcMemory(pool, scratch=0)
    weights = {key: model(64, 32, seed=i) for i, key in enumerate("abc")}
    for key in "abc":
        load(memory, key, weights[key])
        assert memory.exact
    assert memory.extents()[-1].offset + memory.extents()[-1].nbytes == 1024 * KIB
    memory.release("b")
    load(memory, "b", weights["b"])
    for key in "abc":
        check(memory, key, weights[key])
    assert memory.exact
    assert pool.statistics().in_use == memory.statistics().in_use


def test_bytes_that_somebody_else_holds_make_admission_count_bytes_until_they_are_gone(caplog):
    caplog.set_level(logging.INFO)
    pool = SimulatedPool(256 * KIB)
    memory = BfcMemory(pool, scratch=32 * KIB)
    foreign = pool.put(np.zeros(40 * KIB, np.uint8))
    load(memory, "a", model(16))
    assert not memory.exact
    now = memory.statistics()
    assert (now.foreseen, now.in_use, now.free) == (False, 56 * KIB, 168 * KIB)
    assert "does not agree with it" in caplog.text
    assert "by the count of free bytes alone" in caplog.text
    with pytest.raises(NotPlaceableError):
        memory.place("b", model(169).layout)
    load(memory, "b", model(100))
    pool.free(foreign)
    memory.release("a")
    memory.release("b")
    assert memory.exact
    assert caplog.text.count("does not agree with it") == 1
    assert "agrees with it again" in caplog.text
    load(memory, "a", model(64, 64, 64))
    assert memory.exact


def test_an_upload_that_the_allocator_refuses_leaves_its_bytes_as_before():
    pool = SimulatedPool(256 * KIB)
    memory = BfcMemory(pool, scratch=0)
    weights = model(60, 60, 60)
    memory.place("a", weights.layout)
    held = pool.put(np.zeros(128 * KIB, np.uint8))
    before = pool.statistics()
    with pytest.raises(DeviceError, match="cannot be allocated"):
        memory.fill("a", weights.chunks())
    assert pool.statistics() == before
    memory.abandon("a")
    pool.free(held)
    assert memory.statistics().in_use == 0
    load(memory, "a", weights)
    check(memory, "a", weights)


def test_an_upload_that_is_refused_makes_admission_count_the_bytes_that_are_free():
    pool = SimulatedPool(256 * KIB)
    memory = BfcMemory(pool, scratch=0)
    held = pool.put(np.zeros(128 * KIB, np.uint8))
    weights = model(200)
    memory.place("a", weights.layout)
    with pytest.raises(DeviceError, match="cannot be allocated"):
        memory.fill("a", weights.chunks())
    memory.abandon("a")
    assert memory.statistics().free == 128 * KIB
    with pytest.raises(NotPlaceableError):
        memory.place("a", weights.layout)
    pool.free(held)
    load(memory, "b", model(16))
    assert memory.exact


class Late(SimulatedPool):
    """Gives a buffer back when somebody waits for it, and never one whose copy nobody has waited for."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._copied: set[int] = set()
        self._freed: list = []

    def wait(self, array):
        self._copied.add(id(array))

    def free(self, array):
        self._freed.append(array)

    def settle(self, in_use):
        assert self.statistics().in_use >= in_use
        for array in [array for array in self._freed if id(array) in self._copied]:
            super().free(array)
        self._freed = [array for array in self._freed if id(array) not in self._copied]


def test_what_a_failed_upload_gives_back_late_is_waited_for():
    memory = BfcMemory(Late(256 * KIB), scratch=0)
    weights = model(60, 60)
    for _ in range(3):
        memory.place("a", weights.layout)
        with pytest.raises(DeviceMemoryError, match="packed bytes"):
            memory.fill("a", [*weights.chunks(), next(weights.chunks())])
        memory.abandon("a")
        assert memory.exact


def test_pinned_bytes_are_those_of_the_chunks():
    memory = BfcMemory(SimulatedPool(1024 * KIB), scratch=0)
    load(memory, "hole", model(128))
    load(memory, "wall", model(1))
    memory.release("hole")
    load(memory, "a", model(100), pinned=True)
    assert memory.statistics().pinned == 128 * KIB, "the chunk is handed out whole"
    assert memory.release("a") == 128 * KIB
    assert memory.statistics().pinned == 0
