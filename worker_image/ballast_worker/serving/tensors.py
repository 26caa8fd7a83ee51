# SPDX-License-Identifier: Apache-2.0
"""Tensors of requests: what an input or output is, and how bytes and numbers become arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ballast_worker.serving.call import Array
from ballast_worker.serving.datatypes import DATATYPES

Buffer = bytes | bytearray | memoryview


class RequestError(Exception):
    """A request that this model cannot be asked: HTTP 400, gRPC INVALID_ARGUMENT."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    Attributes:
        index: position in the manifest.
        name: what clients call it.
        datatype: the protocol's name of its type.
        dtype: of arrays.
        axes: sizes, names of dimensions, and (outputs only) expressions over dimensions.
        unservable: why it cannot travel; empty when it can.
    """

    index: int
    name: str
    datatype: str
    dtype: np.dtype[np.generic]
    axes: tuple[int | str, ...]
    unservable: str

    @property
    def metadata_shape(self) -> list[int]:
        """The shape as metadata shows it: -1 for an axis whose size varies."""
        return [axis if isinstance(axis, int) else -1 for axis in self.axes]


def from_raw(tensor: Tensor, shape: tuple[int, ...], data: Buffer) -> Array:
    """A view of raw bytes as an array; nothing is copied.

    Raises:
        RequestError: the bytes are more or fewer than the shape needs.
    """
    wanted = math.prod(shape) * tensor.dtype.itemsize
    if len(data) != wanted:
        raise RequestError(
            f"input '{tensor.name}' has {len(data)} bytes; {wanted} are wanted for shape {list(shape)} of "
            f"{tensor.datatype}"
        )
    array: Array = np.frombuffer(data, dtype=tensor.dtype).reshape(shape)
    if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise RequestError(f"input '{tensor.name}' of BOOL has bytes other than 0 and 1")
    return array


def from_values(tensor: Tensor, shape: tuple[int, ...], values: object) -> Array:
    """An array of numbers that came as text or as typed fields; nested or flat, row-major.

    Raises:
        RequestError: they are not numbers of this type, or their count is not the shape's.
    """
    where = f"input '{tensor.name}'"
    if not isinstance(values, list):
        raise RequestError(f"{where} has no list of values in 'data'")
    try:
        array: Array = np.array(values)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"{where}: lists in 'data' differ in length or depth; shape is {list(shape)}") from error
    if array.size != math.prod(shape):
        raise RequestError(
            f"{where} has {array.size} values; {math.prod(shape)} are wanted for shape {list(shape)} of "
            f"{tensor.datatype}"
        )
    if not array.size:
        return np.empty(shape, tensor.dtype)
    if tensor.datatype == "UINT64" and array.dtype.kind == "f":
        array = _exact(array, values)
    if array.dtype.kind not in _ACCEPTED[tensor.datatype]:
        raise RequestError(f"{where} has values that are not {tensor.datatype}")
    with np.errstate(over="ignore"):
        converted = array.astype(tensor.dtype, copy=False).reshape(shape)
    if tensor.dtype.kind in "iu":
        # A value that does not fit comes back as another one.
        fits = np.array_equal(converted.reshape(-1), array.reshape(-1))
    else:
        fits = tensor.datatype == "BOOL" or not np.isinf(converted.astype(np.float64, copy=False)).any()
    if not fits:
        raise RequestError(f"{where} has values outside the range of {tensor.datatype}")
    return converted


def _exact(array: Array, values: object) -> Array:
    """Integers of 64 bits that numpy took for floats because some are above and some below 2**63."""
    exact = np.array(values, dtype=object).reshape(-1)
    if all(type(value) is int and 0 <= value < 1 << 64 for value in exact):
        return exact.astype(np.uint64)
    return array


_ACCEPTED: Mapping[str, str] = {
    datatype: "b" if datatype == "BOOL" else "iu" if "INT" in datatype else "iuf" for datatype in DATATYPES.values()
}
