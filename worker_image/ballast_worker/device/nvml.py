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


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


_UNKNOWN: Final = (1 << 64) - 1
"""What the library answers where it may not tell how much a process holds."""

_MOST: Final = 64
"""Processes that are asked for by name; a device seldom has as many."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that computes on the device: its number as the node counts, and bytes, None where that is not told."""

    pid: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Device memory at one moment, in bytes, and the processes that compute on the device."""

    free: int
    used: int
    holders: tuple[Holder, ...] = ()

    @property
    def processes(self) -> int:
        """How many compute on the device."""
        return len(self.holders)


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
    count = ctypes.c_uint(_MOST)
    processes = (_Process * _MOST)()
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != _SUCCESS:
        return None
    answer = library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes)
    if answer == _INSUFFICIENT_SIZE:  # more than were asked for: they are counted, not named
        return Usage(memory.free, memory.used, (Holder(0, None),) * count.value)
    if answer != _SUCCESS:
        return None
    found = (Holder(one.pid, None if one.used == _UNKNOWN else int(one.used)) for one in processes[: count.value])
    return Usage(memory.free, memory.used, tuple(found))
