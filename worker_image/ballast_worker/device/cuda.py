# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA GPU as a device: one block of its memory, copies on streams of our own, the context that JAX uses too.

The one module that imports CUDA packages.
"""

from __future__ import annotations

import ctypes
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ballast_worker.bundle.layout import ALIGNMENT
from ballast_worker.device.backend import DeviceError, DeviceLostError, DeviceUnavailableError

PIECE_BYTES: Final = 32 << 20
"""One takes 0.6 ms, which is about what the inputs of a request wait for; smaller ones leave more of the link unused between
them (measured: 16 MiB 2.2 %, 32 MiB 1.2 %)."""

DEPTH: Final = 4
"""Pieces in flight: as much time as the host may take to wake up, on a machine that is busy or asleep, before the link idles."""

SLOT_BYTES: Final = 16 << 20
"""Of the page-locked memory by way of which other memory is copied, one of two slots: the host fills one meanwhile."""

RING_BYTES: Final = 2 * SLOT_BYTES

BOUNCE_BYTES: Final = 32 << 20
"""Device memory through which an extent slides by less than this; larger steps copy directly."""

_STICKY: Final = frozenset({
    "CUDA_ERROR_ASSERT", "CUDA_ERROR_CONTAINED", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_EXTERNAL_DEVICE", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    "CUDA_ERROR_UNKNOWN",
})  # fmt: skip
"""Errors after which every later call of the context fails too."""


def _driver() -> Any:
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - only a worker on cuda has it
    except ImportError as error:
        raise DeviceUnavailableError(
            f"backend cuda needs the package cuda-bindings 13 or later ({error}): install ballast[gpu]"
        ) from error
    return driver


def _call(function: Any, *arguments: Any) -> Any:
    """Call the driver; returns its result, or a tuple of several.

    Raises:
        DeviceLostError: a sticky error.
        DeviceError: any other.
    """
    try:
        status, *results = function(*arguments)
    except RuntimeError as error:  # the driver's library is not on this machine
        raise DeviceUnavailableError(f"no NVIDIA driver: {error}") from error
    if status.value:
        message = f"{function.__name__} failed with {status.name}"
        if status.name in _STICKY:
            raise DeviceLostError(f"{message}: the device's context is lost, only a new process helps")
        raise DeviceError(message)
    return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True, slots=True)
class Identity:
    """A device as the driver knows it, without a context."""

    name: str
    uuids: tuple[str, ...]
    total_bytes: int


def identify(ordinal: int) -> Identity:
    """Name, identifiers and size of a device.

    Raises:
        DeviceUnavailableError: no driver, no package, or no such device.
    """
    driver = _driver()
    device = _device(driver, ordinal)
    name = _call(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode()
    identifier = uuid.UUID(bytes=bytes(_call(driver.cuDeviceGetUuid, device).bytes))
    return Identity(name, (f"GPU-{identifier}", f"MIG-{identifier}"), _call(driver.cuDeviceTotalMem, device))


def _device(driver: Any, ordinal: int) -> Any:
    _call(driver.cuInit, 0)
    count = _call(driver.cuDeviceGetCount)
    if not 0 <= ordinal < count:
        raise DeviceUnavailableError(f"device.ordinal is {ordinal} and this process sees {count} devices")
    return _call(driver.cuDeviceGet, ordinal)


class CudaBackend:
    """Implements `backend.Backend` on one GPU.

    The context is the device's primary one, which JAX's client uses as well, so that addresses mean the same to both. The
    bounce block lies behind the block, in the same allocation.

    Raises:
        DeviceUnavailableError: no driver, no package, or no such device.
        DeviceError: context, streams or the ring cannot be made.
    """

    kind = "cuda"
    piece_bytes = PIECE_BYTES
    overhead_bytes = BOUNCE_BYTES

    def __init__(self, ordinal: int = 0) -> None:
        self._driver = driver = _driver()
        self._ordinal = ordinal
        self._handle = _device(driver, ordinal)
        self._context = _call(driver.cuDevicePrimaryCtxRetain, self._handle)
        self._enter()
        not_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._uploads = [_call(driver.cuStreamCreate, not_blocking) for _ in range(2)]
        self._moves = _call(driver.cuStreamCreate, not_blocking)
        flags = driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._events = [_call(driver.cuEventCreate, flags) for _ in range(DEPTH)]
        flag = driver.CU_MEMHOSTALLOC_PORTABLE
        self._ring = [_call(driver.cuMemHostAlloc, SLOT_BYTES, flag) for _ in range(RING_BYTES // SLOT_BYTES)]
        self._base = 0
        self._nbytes = 0

    @property
    def address(self) -> int:
        """Where the block starts."""
        return self._base

    @property
    def device(self) -> Any:
        """The device of JAX's CUDA client with the same ordinal."""
        import jax  # noqa: PLC0415 - importing JAX reads its environment, which main sets first

        for device in jax.local_devices(backend="cuda"):
            if device.local_hardware_id == self._ordinal:
                return device
        raise DeviceUnavailableError(f"JAX's cuda client has no device with ordinal {self._ordinal}")

    def allocate(self, nbytes: int) -> None:
        """Take the block and the bounce block behind it."""
        self._enter()
        size = nbytes + BOUNCE_BYTES
        try:
            self._base = int(_call(self._driver.cuMemAlloc, size))
        except DeviceLostError:
            raise
        except DeviceError as error:
            free, total = _call(self._driver.cuMemGetInfo)
            raise DeviceError(
                f"{size} bytes of device memory for the arena cannot be had ({error}): "
                f"{free} of {total} bytes are free, lower device.budget"
            ) from error
        if self._base % ALIGNMENT:
            raise DeviceError(f"the driver's block starts at {self._base:#x}, not at a multiple of {ALIGNMENT}")
        self._nbytes = nbytes

    def upload(self) -> CudaUpload:
        """A run of copies, on two streams that no other work uses."""
        self._enter()
        return CudaUpload(self._driver, self._base, self._uploads, self._events, self._ring)

    def move(self, source: int, target: int, nbytes: int) -> None:
        """Enqueue a copy; where it overlaps, ascending steps that do not, or two copies through the bounce block."""
        self._enter()
        step = source - target
        if not 0 < step < nbytes:
            self._copy(self._base + source, self._base + target, nbytes)
            return
        bounce = self._base + self._nbytes
        stride = max(step, BOUNCE_BYTES)
        for offset in range(0, nbytes, stride):
            size = min(stride, nbytes - offset)
            start, end = self._base + source + offset, self._base + target + offset
            if step >= BOUNCE_BYTES:
                self._copy(start, end, size)
            else:
                self._copy(start, bounce, size)
                self._copy(bounce, end, size)

    def finish_moves(self) -> None:
        """Wait for the stream of moves."""
        self._enter()
        _call(self._driver.cuStreamSynchronize, self._moves)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copy bytes to the host."""
        self._enter()
        target = np.empty(nbytes, np.uint8)
        if nbytes:
            _call(self._driver.cuMemcpyDtoH, target.ctypes.data, self._base + offset, nbytes)
        return target.tobytes()

    def close(self) -> None:
        """Give everything back, also of a device that is lost."""
        driver = self._driver
        steps = [
            (driver.cuCtxSetCurrent, self._context),
            *((driver.cuStreamSynchronize, stream) for stream in (*self._uploads, self._moves)),
            *((driver.cuMemFree, base) for base in [self._base] if base),
            *((driver.cuMemFreeHost, slot) for slot in self._ring),
            *((driver.cuEventDestroy, event) for event in self._events),
            *((driver.cuStreamDestroy, stream) for stream in (*self._uploads, self._moves)),
            (driver.cuDevicePrimaryCtxRelease, self._handle),
        ]
        for function, argument in steps:
            function(argument)
        self._base = 0

    def _copy(self, source: int, target: int, nbytes: int) -> None:
        _call(self._driver.cuMemcpyDtoDAsync, target, source, nbytes, self._moves)

    def _enter(self) -> None:
        """Make the context current on this thread, which each thread has to do for itself."""
        _call(self._driver.cuCtxSetCurrent, self._context)


class CudaUpload:
    """Implements `backend.Upload` with two streams in turn, each copy waiting for the one before it on the other stream.

    A copy engine serves a stream for as long as it finds something in it that it may do: a load on one stream would hold
    up every other host-to-device copy until its end. Here the stream in turn has nothing further when its piece has been
    copied, so that the engine looks at the others, and the host has no part in it.

    Invariants: at most `DEPTH` pieces are in flight, so that the event of the next is free; at most one of them comes from
    the ring when one of its slots is filled, so that the other slot is free.
    """

    def __init__(self, driver: Any, base: int, streams: list[Any], events: list[Any], ring: list[Any]) -> None:
        self._driver = driver
        self._base = base
        self._streams = streams
        self._events = events
        self._ring = ring
        self._flying: deque[tuple[Any, int]] = deque()
        self._turn = 0
        self._slot = 0
        self._sent = 0
        self._seen = 0

    def send(self, offset: int, data: memoryview, *, locked: bool) -> int:
        """Enqueue one piece, by way of the ring if it is not page-locked."""
        source = np.frombuffer(data, np.uint8)
        address, nbytes = source.ctypes.data, source.nbytes
        if locked:
            self._enqueue(self._base + offset, address, nbytes)
            return self._seen
        for start in range(0, nbytes, SLOT_BYTES):
            while len(self._flying) > 1:
                self.wait()
            slot, size = int(self._ring[self._slot]), min(SLOT_BYTES, nbytes - start)
            self._slot = 1 - self._slot
            ctypes.memmove(slot, address + start, size)
            self._enqueue(self._base + offset + start, slot, size)
        return self._seen

    def wait(self) -> int:
        """Wait for the oldest piece in flight."""
        if self._flying:
            event, sent = self._flying[0]
            _call(self._driver.cuEventSynchronize, event)
            self._flying.popleft()
            self._seen = sent
        return self._seen

    def finish(self) -> None:
        """Wait for what is in flight."""
        try:
            while self._flying:
                self.wait()
        except DeviceError:
            self._flying.clear()
            for stream in self._streams:
                self._driver.cuStreamSynchronize(stream)
            raise

    def _enqueue(self, target: int, source: int, nbytes: int) -> None:
        while len(self._flying) >= DEPTH:
            self.wait()
        driver, stream, event = self._driver, self._streams[self._turn % 2], self._events[self._turn % DEPTH]
        self._turn += 1
        if self._flying:
            _call(driver.cuStreamWaitEvent, stream, self._flying[-1][0], 0)
        _call(driver.cuMemcpyHtoDAsync, target, source, nbytes, stream)
        try:
            _call(driver.cuEventRecord, event, stream)
        except DeviceError:
            driver.cuStreamSynchronize(stream)  # nobody else would know of this copy
            raise
        self._sent += nbytes
        self._flying.append((event, self._sent))
