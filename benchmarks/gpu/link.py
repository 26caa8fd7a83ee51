# SPDX-License-Identifier: Apache-2.0
"""The limit of every load: the rate of plain copies from host memory such as its pool is, measured beside what it bounds."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

import numpy as np

from benchmarks.gpu.setting import Setting

COPIES = 8


def bytes_per_second(setting: Setting) -> float:
    """The best of some runs of large copies: eight in a row from page-locked memory on a GPU; on the CPU, where nothing is
    enqueued, each by itself, from shared memory.
    """
    measure = _cuda if setting.backend == "cuda" else _cpu
    return measure(setting.scale.link_bytes, setting.scale.repeats)


def _cpu(nbytes: int, repeats: int) -> float:
    fd = os.memfd_create("link")
    try:
        os.ftruncate(fd, nbytes)
        source, target = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8), np.zeros(nbytes, np.uint8)
    finally:
        os.close(fd)
    source[:] = 1
    return _best_rate(nbytes, repeats * COPIES, 1, lambda: np.copyto(target, source), lambda: None)


def _cuda(nbytes: int, repeats: int) -> float:
    from cuda.bindings import driver  # noqa: PLC0415 - only where there is a GPU

    def call(function: object, *arguments: object) -> object:
        status, *results = function(*arguments)  # type: ignore[operator]
        if status.value:
            raise RuntimeError(f"{getattr(function, '__name__', function)}: {status.name}")
        return results[0] if results else None

    device = call(driver.cuDeviceGet, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    source = call(driver.cuMemHostAlloc, nbytes, driver.CU_MEMHOSTALLOC_PORTABLE)
    target = call(driver.cuMemAlloc, nbytes)
    try:
        return _best_rate(
            nbytes,
            repeats,
            COPIES,
            lambda: call(driver.cuMemcpyHtoDAsync, target, source, nbytes, stream),
            lambda: call(driver.cuStreamSynchronize, stream),
        )
    finally:
        call(driver.cuMemFree, target)
        call(driver.cuMemFreeHost, source)
        call(driver.cuStreamDestroy, stream)
        call(driver.cuDevicePrimaryCtxRelease, device)


def _best_rate(
    nbytes: int, repeats: int, copies: int, copy: Callable[[], object], finish: Callable[[], object]
) -> float:
    copy()
    finish()
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(copies):
            copy()
        finish()
        rates.append(copies * nbytes / (time.perf_counter() - began))
    return max(rates)
