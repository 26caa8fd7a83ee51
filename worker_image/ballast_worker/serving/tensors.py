# SPDX-License-Identifier: Apache-2.0
"""Tensors of requests: what an input or output is, and how bytes and numbers become arrays."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ballast_worker.serving.call import Array

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
    array = _shaped(tensor, np.frombuffer(data, dtype=tensor.dtype), shape)
    if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise RequestError(f"input '{tensor.name}' of BOOL has bytes other than 0 and 1")
    return array


def from_values(tensor: Tensor, shape: tuple[int, ...], values: object) -> Array:
    """An array of what JSON has as `data`: numbers or booleans, nested or flat, row-major. Never larger than the lists.

    Raises:
        RequestError: they are not values of this type, or their count is not the shape's.
    """
    where = f"input '{tensor.name}'"
    if not isinstance(values, list):
        raise RequestError(f"{where} has no list of values in 'data'")
    flat = _leaves(values)
    kinds = _kinds(flat or [])
    if flat is None or list in kinds:
        raise RequestError(f"{where}: lists in 'data' differ in length or depth; shape is {list(shape)}")
    if not kinds <= _KINDS[tensor.datatype]:
        raise RequestError(f"{where} has values that are not {tensor.datatype}")
    array = from_numbers(tensor, shape, flat)
    if float in _KINDS[tensor.datatype] and np.isinf(array).any():
        raise RequestError(f"{where} has values outside the range of {tensor.datatype}")
    return array


def from_numbers(tensor: Tensor, shape: tuple[int, ...], numbers: Sequence[Any]) -> Array:
    """An array of numbers of the tensor's kind (booleans, integers, or both and floats), row-major.

    Raises:
        RequestError: their count is not the shape's, or an integer or FP16 among them does not fit the type; other floats become
            infinite.
    """
    where, wanted = f"input '{tensor.name}'", math.prod(shape)
    if len(numbers) != wanted:
        raise RequestError(
            f"{where} has {len(numbers)} values; {wanted} are wanted for shape {list(shape)} of {tensor.datatype}"
        )
    code = _CODES[tensor.datatype]
    try:
        packed = struct.pack(f"{wanted}{code}", *numbers)
    except (struct.error, OverflowError) as error:
        raise RequestError(f"{where} has values outside the range of {tensor.datatype}") from error
    array: Array = np.frombuffer(packed, dtype=code)
    if tensor.datatype == "BF16":
        with np.errstate(over="ignore"):
            array = array.astype(tensor.dtype)
    return _shaped(tensor, array, shape)


def _leaves(values: list[Any]) -> list[Any] | None:
    """What nested lists hold, level by level; None where the items of one level are not all lists of one length."""
    while values and type(values[0]) is list:
        if set(map(type, values)) != {list} or len(set(map(len, values))) != 1:
            return None
        values = list(itertools.chain.from_iterable(values))
    return values


def _kinds(values: list[Any]) -> set[type]:
    """The types of some values: of one type, as nearly always, they are counted, which takes half the time of a set."""
    types = list(map(type, values))
    return {types[0]} if types and types.count(types[0]) == len(types) else set(types)


def _shaped(tensor: Tensor, array: Array, shape: tuple[int, ...]) -> Array:
    try:
        return array.reshape(shape)
    except ValueError as error:  # an axis of length 0 beside others that are too large for any array
        raise RequestError(f"input '{tensor.name}' has shape {list(shape)}: {error}") from error


_CODES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
    "BF16": "f",
}
"""What `struct` and numpy call each type; BF16 is rounded from FP32."""

_KINDS: Final[Mapping[str, frozenset[type]]] = {
    datatype: frozenset({bool} if code == "?" else {int, float} if code in "efd" else {int})
    for datatype, code in _CODES.items()
}
