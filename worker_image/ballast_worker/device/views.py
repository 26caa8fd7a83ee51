# SPDX-License-Identifier: Apache-2.0
"""Zero-copy jax.Array views of arena memory, through hand-made DLPack capsules.

Each capsule's struct and shape lie in one block of libc's malloc, and libc's own `free` is its deleter: JAX calls the
deleter from its threads at any time, also while the interpreter ends, so that no Python may be in its path, and it must
not be null. Whoever makes a view guarantees that the memory outlives every execution that reads it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

from ballast_worker.bundle.layout import ALIGNMENT, Placed, TensorSpec, numpy_dtype

SUPPORTED_JAXLIB: Final = ">=0.10,<0.12"

CPU: Final = 1
CUDA: Final = 2
_DEVICE_TYPES: Final = {"cpu": CPU, "gpu": CUDA, "cuda": CUDA}

# DLPack's type codes and bits (dlpack.h 1.1), by our canonical dtype names.
_TYPES: Final = {
    "bool": (6, 8),
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128),
    "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8), "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip

# DLManagedTensor without its shape: data, device type and id, ndim, code, bits, lanes, shape, strides, byte offset,
# manager context, deleter.
_HEADER: Final = struct.Struct("@QiiiBBHQQQQQ")

_libc: Final = ctypes.CDLL(None)
_malloc: Final = _libc.malloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free: Final = _libc.free
_free.restype, _free.argtypes = None, [ctypes.c_void_p]
_FREE_ADDRESS: Final = ctypes.cast(_free, ctypes.c_void_p).value
_capsule_new: Final = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class ViewError(Exception):
    """A tensor cannot be seen in place: its type has no DLPack code, or JAX copied instead of aliasing."""


class UnsupportedJaxlibError(Exception):
    """The installed jaxlib cannot alias foreign memory in the way this module needs."""


class Viewer:
    """Makes views of memory of one device. Any thread may use it.

    Args:
        device: a jax.Device of platform cpu or gpu.

    Raises:
        ViewError: the device's platform is another.
    """

    def __init__(self, device: Any) -> None:
        if device.platform not in _DEVICE_TYPES:
            raise ViewError(f"no views of memory on platform '{device.platform}': supported are cpu and cuda")
        self._device = device
        self._type = _DEVICE_TYPES[device.platform]
        self._ordinal = device.local_hardware_id or 0

    def view(self, address: int, spec: TensorSpec) -> Any:
        """A jax.Array of the spec's dtype and shape whose buffer is the memory at `address`.

        Raises:
            ViewError: the dtype cannot be viewed, or JAX did not alias the memory.
        """
        try:
            code, bits = _TYPES[spec.dtype]
        except KeyError:
            raise ViewError(
                f"tensor '{spec.name}' has dtype {spec.dtype}, which cannot be seen in place: "
                f"supported are {', '.join(sorted(_TYPES))}"
            ) from None
        array = _import(self._capsule(address, code, bits, spec.shape), self._device, self._type, self._ordinal)
        if (
            array.unsafe_buffer_pointer() != address
            or array.dtype != numpy_dtype(spec.dtype)
            or array.shape != spec.shape
        ):
            raise ViewError(
                f"tensor '{spec.name}': JAX made {array.dtype.name}{list(array.shape)} at "
                f"{array.unsafe_buffer_pointer() - address:+d} bytes instead of {spec.dtype}{list(spec.shape)} in place"
            )
        return array

    def views(self, address: int, tensors: Sequence[Placed]) -> list[Any]:
        """One view per tensor of a layout whose first byte lies at `address`."""
        return [self.view(address + placed.offset, placed.spec) for placed in tensors]

    def _capsule(self, address: int, code: int, bits: int, shape: tuple[int, ...]) -> Any:
        size = _HEADER.size + 8 * len(shape)
        memory = _malloc(size)
        if not memory:
            raise MemoryError(f"{size} bytes for a DLPack capsule")
        shape_at = memory + _HEADER.size
        header = _HEADER.pack(
            address, self._type, self._ordinal, len(shape), code, bits, 1, shape_at, 0, 0, 0, _FREE_ADDRESS
        )
        ctypes.memmove(memory, header + struct.pack(f"@{len(shape)}q", *shape), size)
        return _capsule_new(memory, b"dltensor", None)


def check_support(viewer: Viewer, address: int) -> None:
    """Prove at start-up that views alias memory, on the 256 bytes at `address`.

    Raises:
        UnsupportedJaxlibError: they do not; the message names the jaxlib versions that do.
    """
    try:
        for dtype in _TYPES:
            itemsize = _TYPES[dtype][1] // 8
            viewer.view(address, TensorSpec(f"self-check {dtype}", dtype, (2, ALIGNMENT // itemsize // 2)))
        viewer.view(address, TensorSpec("self-check empty", "float32", (0, 3)))
    except Exception as error:
        raise UnsupportedJaxlibError(
            f"jaxlib {metadata.version('jaxlib')} cannot alias the arena's memory ({error}): "
            f"install a release that was tested, {SUPPORTED_JAXLIB}"
        ) from error


def _import(capsule: Any, device: Any, device_type: int, ordinal: int) -> Any:
    """Make a jax.Array of a capsule: the only use of jaxlib's private API here, with the public one behind it.

    jaxlib 0.10 and 0.11 take (capsule, device, stream). No stream: nothing is waited for, which leases make right. A
    capsule that was refused for the function's signature has not been consumed.
    """
    try:
        from jaxlib._jax import dlpack_managed_tensor_to_buffer  # noqa: PLC0415 - absent in other releases

        return dlpack_managed_tensor_to_buffer(capsule, device, None)
    except (ImportError, TypeError):
        import jax  # noqa: PLC0415 - importing JAX reads its environment, which main sets first

        with jax.enable_x64(True):  # 64-bit types keep their width
            return jax.dlpack.from_dlpack(_Exporter(capsule, device_type, ordinal))


class _Exporter:
    """An object of the public protocol around one capsule."""

    def __init__(self, capsule: Any, device_type: int, ordinal: int) -> None:
        self._capsule = capsule
        self._device = (device_type, ordinal)

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
