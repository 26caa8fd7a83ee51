# SPDX-License-Identifier: Apache-2.0
"""The driver's own view of a CUDA device's memory, read through NVML, which takes no context and no device memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Bytes of a card, over all processes."""

    total: int
    used: int


def card_memory(ordinal: int) -> CardMemory | None:
    """Memory of the CUDA device with this ordinal (as CUDA_VISIBLE_DEVICES leaves it), or None where the driver does
    not tell.
    """
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - only where there is a GPU

        driver.cuInit(0)
        _, device = driver.cuDeviceGet(ordinal)
        _, raw = driver.cuDeviceGetUuid(device)
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except (ImportError, OSError, RuntimeError):
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        digits = bytes(raw.bytes).hex()
        uuid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        handle, memory = ctypes.c_void_p(), _Memory()
        # A slice of a card has an identifier of its own kind.
        for kind in ("GPU", "MIG"):
            if nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle)) == 0:
                break
        else:
            return None
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return CardMemory(int(memory.total), int(memory.used))
    finally:
        nvml.nvmlShutdown()
