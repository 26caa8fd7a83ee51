# SPDX-License-Identifier: Apache-2.0
"""The few questions to NVIDIA's management library that need no context on the device: memory used, and by how many.

Its C interface is stable and comes with the driver, so that no package is needed for it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

_SUCCESS: Final = 0
_INSUFFICIENT_SIZE: Final = 7


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Usage:
    """Device memory at one moment, in bytes, and the processes that compute on the device."""

    free: int
    used: int
    processes: int


def usage(uuids: tuple[str, ...]) -> Usage | None:
    """What is used on the device that has one of these identifiers; None when the library cannot tell."""
    try:
        library: Any = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() != _SUCCESS:
        return None
    try:
        for uuid in uuids:
            device = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) == _SUCCESS:
                return _usage(library, device)
        return None
    finally:
        library.nvmlShutdown()


def _usage(library: Any, device: ctypes.c_void_p) -> Usage | None:
    memory = _Memory()
    count = ctypes.c_uint(0)
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != _SUCCESS:
        return None
    # Asked for room for none, it answers how many there are.
    answer = library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
    if answer not in {_SUCCESS, _INSUFFICIENT_SIZE}:
        return None
    return Usage(memory.free, memory.used, count.value)
