# SPDX-License-Identifier: Apache-2.0
"""XLA's own pool on a device: taken at its whole size before anything is served, and used for weights where they share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ballast_worker.bundle.layout import ALIGNMENT
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_pool import PoolStatistics

POOL_GRAIN: Final = 2 << 20
"""The pool's size is asked for as a share of the card and cut to whole blocks."""

_SETTLE_SECONDS: Final = 1.0
_SETTLE_STEP: Final = 1e-3


def take_pool(device: Any, nbytes: int) -> None:
    """Have XLA take its pool now: it does so at the first allocation, and only then is it known whether it could.

    Raises:
        DeviceError: it could not, or the pool is smaller than planned.
    """
    if device.platform == "cpu":
        return  # no pool: scratch is host memory, and accounted only
    _begin(device, nbytes)
    statistics = device.memory_stats() or {}
    limit, pool = (int(statistics.get(key, 0)) for key in ("bytes_limit", "pool_bytes"))
    if limit + POOL_GRAIN < nbytes:
        raise DeviceError(f"XLA's pool has {limit} bytes instead of {nbytes}: its client was made before the plan")
    if pool and pool + POOL_GRAIN < limit:
        raise DeviceError(f"XLA has taken {pool} of the {limit} bytes of its pool: they are not reserved")


def _begin(device: Any, nbytes: int) -> int:
    """Allocate for a moment; where that was is returned."""
    import jax  # noqa: PLC0415 - importing JAX reads its environment, which main sets first

    try:
        probe = jax.device_put(np.zeros(1, np.uint8), device)
        probe.block_until_ready()
    except RuntimeError as error:
        raise DeviceError(f"XLA's pool of {nbytes} bytes cannot be had ({error}): lower device.budget") from error
    address = int(probe.unsafe_buffer_pointer())
    probe.delete()
    return address


class XlaPool:
    """Implements `bfc_pool.Pool` on a device whose pool was taken, and from which nothing is allocated yet.

    Args:
        device: a jax.Device with XLA's allocator of the default kind, preallocated.
        clock, sleep: seconds.

    Raises:
        DeviceError: its allocator gives no statistics.
    """

    def __init__(
        self,
        device: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import jax  # noqa: PLC0415 - as above

        self._jax, self._device = jax, device
        self._clock, self._sleep = clock, sleep
        # The only chunk is split at its low end, so that this is where the region begins.
        self._base = _begin(device, 0)
        statistics = device.memory_stats() or {}
        if "largest_free_block_bytes" not in statistics:
            raise DeviceError(
                f"{device} tells nothing of its free blocks, which device.allocator=bfc needs: set it to arena, and leave "
                "XLA_PYTHON_CLIENT_ALLOCATOR unset"
            )
        size = int(statistics.get("pool_bytes") or statistics["bytes_limit"])
        self._nbytes = size // ALIGNMENT * ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        return self._nbytes

    def put(self, data: np.ndarray[Any, Any]) -> Any:
        """XLA allocates at once and copies behind."""
        try:
            with self._jax.enable_x64(True):
                return self._jax.device_put(data, self._device)
        except RuntimeError as error:
            raise DeviceError(f"{data.nbytes} bytes cannot be allocated in XLA's pool: {error}") from error

    def wait(self, array: Any) -> None:
        """Wait for the copy."""
        try:
            array.block_until_ready()
        except RuntimeError as error:
            raise DeviceError(f"a copy of {array.nbytes} bytes into XLA's pool failed: {error}") from error

    def offset(self, array: Any) -> int:
        """By the buffer's address."""
        return int(array.unsafe_buffer_pointer()) - self._base

    def free(self, array: Any) -> None:
        """XLA takes it back when its own last use has ended."""
        array.delete()

    def settle(self, in_use: int) -> None:
        """Look again for a second, since nobody tells when a buffer is back."""
        until = self._clock() + _SETTLE_SECONDS
        while self.statistics().in_use > in_use and self._clock() < until:
            self._sleep(_SETTLE_STEP)

    def statistics(self) -> PoolStatistics:
        """The allocator's own."""
        statistics = self._device.memory_stats()
        return PoolStatistics(int(statistics["bytes_in_use"]), int(statistics["largest_free_block_bytes"]))
