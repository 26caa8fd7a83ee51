# SPDX-License-Identifier: Apache-2.0
"""The conformance suite against the arena on JAX's CPU device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.device_conformance import CAPACITY, MovingMemoryConformance

from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.cpu import CpuBackend


class TestArenaOnCpu(MovingMemoryConformance):
    @pytest.fixture
    def memory(self) -> Iterator[ArenaMemory]:
        memory = ArenaMemory(CpuBackend(), CAPACITY)
        yield memory
        memory.close()
