# SPDX-License-Identifier: Apache-2.0
"""The conformance suite against weights in a simulation of XLA's allocator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.device_conformance import CAPACITY, DeviceMemoryConformance

from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool


class TestBfcOnCpu(DeviceMemoryConformance):
    @pytest.fixture
    def memory(self) -> Iterator[BfcMemory]:
        memory = BfcMemory(SimulatedPool(CAPACITY), scratch=0)
        yield memory
        assert memory.exact
        memory.close()
