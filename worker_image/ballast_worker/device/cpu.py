# SPDX-License-Identifier: Apache-2.0
"""The CPU as a device: an aligned block of host memory with every page present, which JAX's CPU client aliases."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from ballast_worker.bundle.layout import ALIGNMENT
from ballast_worker.device.backend import DeviceError

PAGE_BYTES = 4096

PIECE_BYTES = 8 << 20
"""About 0.5 ms of copying, after which progress is told, what was copied is released, and the core is given up to whoever
waits for it. With pieces of 1 MiB what comes between them took a twentieth of a load."""


class CpuBackend:
    """Implements `backend.Backend`. Copies let go of the interpreter's lock, so that loads and executions overlap."""

    kind = "cpu"
    piece_bytes = PIECE_BYTES
    overhead_bytes = 0

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)

    @property
    def address(self) -> int:
        """Where the block starts."""
        return self._block.ctypes.data

    @property
    def device(self) -> Any:
        """The first CPU device of JAX."""
        import jax  # noqa: PLC0415 - importing JAX reads its environment, which main sets first

        return jax.local_devices(backend="cpu")[0]

    def allocate(self, nbytes: int) -> None:
        """Take the block, with room to align it."""
        try:
            raw = np.empty(nbytes + PAGE_BYTES, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"{nbytes} bytes of host memory for the arena cannot be had: {error}") from error
        raw[::PAGE_BYTES] = 0
        start = -raw.ctypes.data % ALIGNMENT
        self._block = raw[start : start + max(nbytes, 1)]

    def upload(self) -> CpuUpload:
        """A run of copies, each complete when `send` returns."""
        return CpuUpload(self._block)

    def move(self, source: int, target: int, nbytes: int) -> None:
        """Copy inside the block at once; memmove knows how to overlap."""
        ctypes.memmove(self.address + target, self.address + source, nbytes)

    def finish_moves(self) -> None:
        """Nothing is ever in flight."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copy bytes out of the block."""
        return self._block[offset : offset + nbytes].tobytes()

    def close(self) -> None:
        """Let go of the block."""
        self._block = np.empty(0, np.uint8)


class CpuUpload:
    """Implements `backend.Upload`."""

    def __init__(self, block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        self._block = block
        self._sent = 0

    def send(self, offset: int, data: memoryview, *, locked: bool) -> int:  # noqa: ARG002 - no matter to memcpy
        """Copy now, then let threads that wait for this core go first: the kernel would let a copy go on for milliseconds
        beside a request that has come.
        """
        source = np.frombuffer(data, np.uint8)
        np.copyto(self._block[offset : offset + source.nbytes], source)
        os.sched_yield()
        self._sent += source.nbytes
        return self._sent

    def wait(self) -> int:
        """Everything has arrived already."""
        return self._sent

    def finish(self) -> None:
        """Everything has arrived already."""
