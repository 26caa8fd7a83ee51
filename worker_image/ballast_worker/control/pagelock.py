# SPDX-License-Identifier: Apache-2.0
"""Page-locking of the host pool's memory for a CUDA device, through the driver."""

from __future__ import annotations

import logging
from typing import Any, Final

from ballast_worker.host.pool import PageLocker

_log = logging.getLogger(__name__)

_PORTABLE: Final = 0x01
_READ_ONLY: Final = 0x08


def cuda_locker(ordinal: int) -> PageLocker:
    """Lock memory for the primary context of a device, which exists already. Any thread.

    The pool's mappings are read-only, which only the driver's own flag can lock.
    """
    from cuda.bindings import driver  # noqa: PLC0415 - only a worker on cuda has it

    _, device = driver.cuDeviceGet(ordinal)
    _, context = driver.cuDevicePrimaryCtxRetain(device)

    def call(function: Any, *arguments: Any) -> bool:
        driver.cuCtxSetCurrent(context)
        (status,) = function(*arguments)
        if status.value:
            _log.warning("%s: %s; weights load through a small locked ring instead", function.__name__, status.name)
        return not status.value

    def lock(address: int, nbytes: int) -> bool:
        return call(driver.cuMemHostRegister, address, nbytes, _PORTABLE | _READ_ONLY)

    def unlock(address: int) -> None:
        call(driver.cuMemHostUnregister, address)

    return PageLocker(lock=lock, unlock=unlock)
