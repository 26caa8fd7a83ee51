# SPDX-License-Identifier: Apache-2.0
"""What weights in XLA's own allocator need of it, and a simulation of it for a device that has none."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_replay import BfcReplay


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The allocator's own figures: bytes in use, whoever uses them, and of its largest free block."""

    in_use: int
    largest_free: int


class Pool(Protocol):
    """An allocator with one region that hands out JAX buffers. Any thread."""

    @property
    def nbytes(self) -> int:
        """Bytes of the region, a multiple of 256."""
        ...

    def put(self, data: np.ndarray[Any, Any]) -> Any:
        """Allocate, and begin to copy an array to the device; returns the jax.Array. `data` stays as it is until `wait`
        has returned.

        Raises:
            DeviceError: no free chunk takes it, or the copy failed.
        """
        ...

    def wait(self, array: Any) -> None:
        """Wait until the host has seen the end of a copy.

        Raises:
            DeviceError: it failed.
        """
        ...

    def offset(self, array: Any) -> int:
        """Where an array with elements lies, counted from the start of the region."""
        ...

    def free(self, array: Any) -> None:
        """Give the buffer of an array back. Nothing uses it any more."""
        ...

    def settle(self, in_use: int) -> None:
        """Wait for what was freed and is given back late, until `in_use` bytes are in use; not for long."""
        ...

    def statistics(self) -> PoolStatistics:
        """The figures now."""
        ...


class SimulatedPool:
    """Implements `Pool` on the CPU: real JAX buffers whose offsets are those that XLA's allocator would have given.

    Host memory is the runtime's own and is not bounded here; what is bounded are the bytes of the simulated region.

    Args:
        nbytes: of the region, of which the largest multiple of 256 is used.
    """

    def __init__(self, nbytes: int) -> None:
        import jax  # noqa: PLC0415 - importing JAX reads its environment, which main sets first

        self._jax = jax
        self._device = jax.local_devices(backend="cpu")[0]
        self.allocator = BfcReplay(nbytes)
        self._lock = threading.Lock()
        self._offsets: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        return self.allocator.capacity

    def put(self, data: np.ndarray[Any, Any]) -> Any:
        """Allocate in the simulation and copy."""
        with self._lock:
            offset = self.allocator.allocate(data.nbytes) if data.nbytes else None
        if data.nbytes and offset is None:
            raise DeviceError(
                f"{data.nbytes} bytes cannot be allocated: {self.nbytes - self.allocator.in_use} are free, "
                f"{self.allocator.largest_free} of them in one block"
            )
        # The CPU client aliases an aligned array, so it gets one of its own.
        with self._jax.enable_x64(True):
            array = self._jax.device_put(data.copy(), self._device)
        if offset is not None:
            self._offsets[id(array)] = offset
        return array

    def wait(self, array: Any) -> None:
        """The copy has been made."""

    def offset(self, array: Any) -> int:
        """The offset in the simulated region."""
        return self._offsets[id(array)]

    def free(self, array: Any) -> None:
        """Free in the simulation, and the buffer."""
        offset = self._offsets.pop(id(array), None)
        if offset is not None:
            with self._lock:
                self.allocator.free(offset)
        array.delete()

    def settle(self, in_use: int) -> None:
        """Nothing is given back late."""

    def statistics(self) -> PoolStatistics:
        """Of the simulation."""
        return PoolStatistics(self.allocator.in_use, self.allocator.largest_free)
