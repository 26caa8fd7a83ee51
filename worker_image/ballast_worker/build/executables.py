# SPDX-License-Identifier: Apache-2.0
"""Serialised executables: the one module that touches JAX's private interface to them.

The bytes are what PJRT itself serialises, behind a small header with the types of arguments and results. Nothing is
pickled. Loading them runs no tracing, lowering or compiling, but it is loading code: only files from the executable
store may come here, after their digest was checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

from ballast_worker.bundle.layout import numpy_dtype

try:
    from jaxlib._jax import DeviceList
except ImportError as error:  # pragma: no cover - only outside the supported range
    raise ImportError(
        f"jax {jax.__version__} has no jaxlib._jax.DeviceList: install a version with >=0.10,<0.12"
    ) from error

_MAGIC: Final = b"BLSTEXE1"
_PREFIX: Final = struct.Struct("<8sI")


class ExecutableError(Exception):
    """Bytes that are no executable for this runtime and device; build the bundle again."""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Type of one argument or result: dtype as numpy names it (`bfloat16` and the float8 types as ml_dtypes does) and
    shape in elements.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(self.dtype).itemsize


class Executable:
    """A program on one device, ready to run.

    Attributes:
        arguments: types of the weights in argument order, then of the inputs.
        results: types of the outputs.
        device: where it runs.
        code_bytes: of generated code, as the runtime counts them; 0 where it does not.
        loaded: the PJRT executable, for a caller that enqueues by itself (`execute_sharded`).
    """

    __slots__ = ("arguments", "code_bytes", "device", "loaded", "results")

    def __init__(
        self, loaded: Any, device: jax.Device, arguments: tuple[ArrayType, ...], results: tuple[ArrayType, ...]
    ) -> None:
        self.loaded = loaded
        self.device = device
        self.arguments = arguments
        self.results = results
        self.code_bytes: int = max(0, loaded.size_of_generated_code_in_bytes())

    def enqueue(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        """Start one run; the results are ready when `block_until_ready` of each has returned. Types are not checked.

        Args:
            arguments: one array per entry of `self.arguments`, on `self.device`.
        """
        shards = self.loaded.execute_sharded(arguments).disassemble_into_single_device_arrays()
        return [shard[0] for shard in shards]

    def execute(
        self, weights: Sequence[jax.Array], inputs: Sequence[np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """Upload the inputs, run once and bring the outputs back; returns when all of them are on the host."""
        uploaded = [jax.device_put(value, self.device) for value in inputs]
        return [np.asarray(result) for result in self.enqueue([*weights, *uploaded])]


def serialize(compiled: jax.stages.Compiled) -> bytes:
    """The bytes of a compiled program whose arguments and results are flat lists of arrays.

    Raises:
        ExecutableError: this backend cannot serialise it.
    """
    loaded: Any = compiled.runtime_executable()
    header = json.dumps(
        {
            "arguments": _describe(jax.tree.leaves(compiled.in_avals)),
            "results": _describe(jax.tree.leaves(compiled.out_info)),
        },
        separators=(",", ":"),
    ).encode()
    try:
        payload: bytes = loaded.client.serialize_executable(loaded)
    except (AttributeError, RuntimeError) as error:
        raise ExecutableError(f"the program cannot be serialised by jax {jax.__version__}: {error}") from error
    return _PREFIX.pack(_MAGIC, len(header)) + header + payload


def deserialize(data: bytes, device: jax.Device) -> Executable:
    """Load a program written by `serialize` of the same runtime for the same kind of device; takes milliseconds.

    Raises:
        ExecutableError: the bytes are damaged, or of another runtime or device kind.
    """
    try:
        magic, length = _PREFIX.unpack_from(data)
        if magic != _MAGIC:
            raise ExecutableError("these bytes are no serialised executable of this version of Ballast")
        start = _PREFIX.size + length
        header = json.loads(data[_PREFIX.size : start])
        arguments, results = _parse(header["arguments"]), _parse(header["results"])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ExecutableError(f"the header of a serialised executable is damaged: {error}") from error
    try:
        loaded = device.client.deserialize_executable(data[start:], executable_devices=DeviceList((device,)))
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ExecutableError(f"the runtime refuses a serialised executable: {error}") from error
    return Executable(loaded, device, arguments, results)


def _describe(types: Sequence[Any]) -> list[list[Any]]:
    return [[np.dtype(type_.dtype).name, list(type_.shape)] for type_ in types]


def _parse(types: list[list[Any]]) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(str(dtype), tuple(int(axis) for axis in shape)) for dtype, shape in types)
