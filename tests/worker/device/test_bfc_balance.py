# SPDX-License-Identifier: Apache-2.0
"""Bytes that XLA's allocator does not get back are counted, and said of whom; nothing else is.

An upload that fails half way must not keep what it had (vllm-project/vllm#34600).
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.device_models import Weights, load

from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool

KIB = 1 << 10


class Leaky(SimulatedPool):
    """Keeps the buffers of these sizes when they are freed, until told to give them back."""

    def __init__(self, nbytes: int, *kept: int) -> None:
        super().__init__(nbytes)
        self.kept = set(kept)
        self._held: list = []

    def free(self, array):
        (self._held.append if array.nbytes in self.kept else super().free)(array)

    def give_back(self) -> None:
        for array in self._held:
            super().free(array)
        self._held.clear()


class Refusing(SimulatedPool):
    """Refuses tensors of this size."""

    refused = 99 * KIB

    def put(self, data):
        if data.nbytes == self.refused:
            raise DeviceError("no room, as XLA might say")
        return super().put(data)


def model(*kib: int) -> Weights:
    """Tensors of so many KiB."""
    return Weights([TensorSpec(f"t{i}", "uint8", (size * KIB,)) for i, size in enumerate(kib)])


def fail(memory: BfcMemory, key: str, *kib: int) -> None:
    """A load whose source fails after every byte but the last tensor's."""
    weights = model(*kib)

    def chunks():
        yield next(weights.chunks(sum(kib[:-1]) * KIB))
        raise OSError("the disk is gone")

    memory.place(key, weights.layout)
    with pytest.raises(OSError, match="the disk is gone"):
        memory.fill(key, chunks())
    memory.abandon(key)


def leaked(memory: BfcMemory) -> tuple[int, int]:
    now = memory.statistics()
    return now.leaked, now.leaked_total


def test_what_a_failed_upload_leaves_behind_is_counted_once_and_said_with_its_key(caplog):
    pool = Leaky(512 * KIB, 20 * KIB)
    memory = BfcMemory(pool, scratch=0)
    load(memory, "a#1", model(8))
    fail(memory, "b#1", 20, 40)
    assert leaked(memory) == (20 * KIB, 20 * KIB)
    assert f"{20 * KIB} bytes of device memory are still in use" in caplog.text
    assert "after the end of b#1: a restart" in caplog.text
    load(memory, "c#1", model(8))
    assert leaked(memory) == (20 * KIB, 20 * KIB)
    assert caplog.text.count("are still in use") == 1


def test_what_freed_weights_leave_behind_is_counted_before_the_next_upload(caplog):
    memory = BfcMemory(Leaky(512 * KIB, 20 * KIB), scratch=0)
    load(memory, "a", model(20, 8))
    load(memory, "b", model(30))
    memory.release("a")
    memory.release("b")
    assert leaked(memory) == (0, 0), "not known yet: an execution may be under way"
    load(memory, "c", model(8))
    assert leaked(memory) == (20 * KIB, 20 * KIB)
    assert "after the end of a, b: a restart" in caplog.text


def test_what_somebody_else_takes_between_two_uploads_is_counted(caplog):
    pool = SimulatedPool(512 * KIB)
    memory = BfcMemory(pool, scratch=0)
    load(memory, "a", model(20))
    pool.put(np.zeros(16 * KIB, np.uint8))
    load(memory, "b", model(20))
    assert leaked(memory) == (16 * KIB, 16 * KIB)
    assert "after the end of no weights, so somebody else took them" in caplog.text


def test_what_comes_back_is_lost_no_more_and_stays_counted():
    pool = Leaky(512 * KIB, 20 * KIB)
    memory = BfcMemory(pool, scratch=0)
    for _ in range(2):
        fail(memory, "a", 20, 40)
    assert leaked(memory) == (40 * KIB, 40 * KIB)
    pool.give_back()
    pool.kept.clear()
    load(memory, "b", model(8))
    assert leaked(memory) == (0, 40 * KIB)


def test_loads_failures_and_frees_lose_nothing_even_where_the_replay_cannot_follow(caplog):
    pool = Refusing(512 * KIB)
    foreign = pool.put(np.zeros(48 * KIB, np.uint8))
    memory = BfcMemory(pool, scratch=0)
    assert not memory.exact
    for turn in range(20):
        load(memory, f"a{turn}", model(30, 10 + turn))
        load(memory, f"b{turn}", model(7, 50))
        memory.release(f"a{turn}")
        fail(memory, "failed", 20, 13)
        memory.place("refused", model(20, 99).layout)
        with pytest.raises(DeviceError, match="no room"):
            memory.fill("refused", model(20, 99).chunks())
        memory.abandon("refused")
        memory.release(f"b{turn}")
    pool.free(foreign)
    load(memory, "last", model(8))
    assert leaked(memory) == (0, 0)
    assert "are still in use" not in caplog.text
