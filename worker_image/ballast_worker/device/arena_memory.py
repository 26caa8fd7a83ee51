# SPDX-License-Identifier: Apache-2.0
"""DeviceMemory as one arena: an extent for each model, zero-copy views for JAX, compaction by moving."""

from __future__ import annotations

import time
from collections.abc import Callable

from ballast_worker.device.backend import Backend
from ballast_worker.device.gate import UploadGate


class ArenaMemory:
    """Implements `memory.DeviceMemory`.

    Args:
        backend: the device; its block is allocated here, once.
        capacity: bytes for weights, of which the largest multiple of 256 is used.
        gate: closed by whoever uploads the inputs of requests.
        clock: seconds, for the durations that are reported.

    Raises:
        DeviceError: the device does not have so many bytes.
    """

    def __init__(
        self,
        backend: Backend,
        capacity: int,
        *,
        gate: UploadGate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        raise NotImplementedError
