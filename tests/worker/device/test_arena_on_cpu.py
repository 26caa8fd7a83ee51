# SPDX-License-Identifier: Apache-2.0
"""The conformance suite against the arena on JAX's CPU device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.device_conformance import CAPACITY, MovingMemoryConformance

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import ALIGNMENT, TensorSpec, pack
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.cpu import PIECE_BYTES, CpuBackend, CpuUpload


class TestArenaOnCpu(MovingMemoryConformance):
    @pytest.fixture
    def memory(self) -> Iterator[ArenaMemory]:
        memory = ArenaMemory(CpuBackend(), CAPACITY)
        yield memory
        memory.close()


def test_a_large_chunk_arrives_whole_in_a_few_pieces_and_after_each_the_core_is_given_up(monkeypatch):
    sizes, yields = [], []
    send = CpuUpload.send

    def counted(upload, offset, data, *, locked):
        sizes.append(len(data))
        return send(upload, offset, data, locked=locked)

    monkeypatch.setattr(CpuUpload, "send", counted)
    monkeypatch.setattr("os.sched_yield", lambda: yields.append(len(sizes)))
    nbytes = 2 * PIECE_BYTES + ALIGNMENT
    backend = CpuBackend()
    memory = ArenaMemory(backend, nbytes)
    image = np.random.default_rng(0).bytes(nbytes)
    memory.place("a", pack([TensorSpec("w", "uint8", (nbytes,))]))
    memory.fill("a", [Chunk(0, memoryview(image))])
    assert sizes == [PIECE_BYTES, PIECE_BYTES, ALIGNMENT]
    assert yields == [1, 2, 3]
    assert backend.read(0, nbytes) == image
    memory.abandon("a")
    memory.close()
