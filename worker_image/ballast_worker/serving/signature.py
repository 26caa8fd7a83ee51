# SPDX-License-Identifier: Apache-2.0
"""What a model takes and gives, compiled from its manifest so that a request is checked in microseconds.

Every fault of a request is a `RequestError` whose message names the tensor, what was sent and what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballast_contract import validation
from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.layout import numpy_dtype
from ballast_worker.bundle.manifest import Manifest, Port
from ballast_worker.serving.call import Array
from ballast_worker.serving.datatypes import DATATYPES, datatype_of, describe_unservable

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


@dataclass(slots=True)
class Request:
    """An inference request after its codec.

    Attributes:
        id: the client's own name for it, echoed.
        inputs: in manifest order.
        dimensions: value of each symbolic dimension.
        outputs: which outputs to send, in the order asked for, each with whether it is wanted as raw bytes.
        timeout_seconds: the caller's own limit from the body; None without one.
    """

    id: str
    inputs: list[Array]
    dimensions: dict[str, int]
    outputs: list[tuple[Tensor, bool]]
    timeout_seconds: float | None


class Signature:
    """Inputs, outputs and dimensions of one manifest."""

    __slots__ = ("_by_input", "_by_output", "_dimensions", "_programs", "inputs", "outputs")

    def __init__(self, manifest: Manifest) -> None:
        self.inputs = _tensors(manifest.inputs)
        self.outputs = _tensors(manifest.outputs)
        self._by_input = {tensor.name: tensor for tensor in self.inputs}
        self._by_output = {tensor.name: tensor for tensor in self.outputs}
        self._dimensions = frozenset(manifest.dimensions)
        # The largest first: it is the one that holds most requests.
        self._programs = sorted(manifest.canonical_programs(), key=lambda program: -math.prod(program.values()))

    def input(self, name: object, datatype: object, shape: object) -> tuple[Tensor, tuple[int, ...]]:
        """The input of this name and its shape, after type, rank and fixed axes were compared with what was sent.

        Raises:
            RequestError: there is no such input, or it has another type or shape.
        """
        tensor = self._by_input.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise RequestError(_unknown("input", name, self._by_input))
        if datatype != tensor.datatype:
            raise RequestError(_wrong_datatype(tensor, datatype))
        if tensor.unservable:
            raise RequestError(f"input '{tensor.name}': {tensor.unservable}")
        axes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else ()
        if len(axes) != len(tensor.axes) or not all(type(axis) is int for axis in axes):
            raise RequestError(_wrong_shape(tensor, shape))
        for axis, wanted in zip(axes, tensor.axes, strict=True):
            if (axis != wanted) if isinstance(wanted, int) else (axis < 1):
                raise RequestError(_wrong_shape(tensor, axes))
        return tensor, axes

    def output(self, name: object) -> Tensor:
        """The output of this name.

        Raises:
            RequestError: there is no such output, or it cannot travel.
        """
        tensor = self._by_output.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise RequestError(_unknown("output", name, self._by_output))
        if tensor.unservable:
            raise RequestError(f"output '{tensor.name}': {tensor.unservable}")
        return tensor

    def all_outputs(self, *, binary: bool) -> list[tuple[Tensor, bool]]:
        """Every output, for a request that names none."""
        return [(self.output(tensor.name), binary) for tensor in self.outputs]

    def gather(self, found: Sequence[tuple[Tensor, Array]]) -> tuple[list[Array], dict[str, int]]:
        """Arrays in manifest order and the dimensions read off their shapes.

        Raises:
            RequestError: an input is missing or there twice, two inputs give one dimension different sizes, or no
                program is large enough.
        """
        slots: list[Array | None] = [None] * len(self.inputs)
        dimensions: dict[str, int] = {}
        for tensor, array in found:
            if slots[tensor.index] is not None:
                raise RequestError(f"input '{tensor.name}' was sent twice")
            slots[tensor.index] = array
            for size, axis in zip(array.shape, tensor.axes, strict=True):
                if isinstance(axis, str) and dimensions.setdefault(axis, size) != size:
                    raise RequestError(
                        f"input '{tensor.name}' has {axis} {size}, another input has {axis} {dimensions[axis]}: "
                        "one request has one size for each dimension"
                    )
        inputs = [array for array in slots if array is not None]
        if len(inputs) != len(slots):
            missing = [f"'{tensor.name}'" for tensor in self.inputs if slots[tensor.index] is None]
            raise RequestError(f"input {', '.join(missing)} is missing")
        self._check_size(dimensions)
        return inputs, dimensions

    def accepts(self, inputs: Sequence[Array], dimensions: Mapping[str, int]) -> bool:
        """Whether a call that was checked against some manifest is one for this manifest too."""
        return (
            len(inputs) == len(self.inputs)
            and dimensions.keys() == self._dimensions
            and all(
                array.dtype == tensor.dtype
                and array.shape == tuple(axis if isinstance(axis, int) else dimensions[axis] for axis in tensor.axes)
                for array, tensor in zip(inputs, self.inputs, strict=True)
            )
        )

    def _check_size(self, dimensions: Mapping[str, int]) -> None:
        for program in self._programs:
            for name, size in dimensions.items():
                if size > program[name]:
                    break
            else:
                return
        largest = "; ".join(program_name(program) for program in self._programs[:4])
        raise RequestError(
            f"no program is large enough for {program_name(dimensions)}: the largest are {largest}; "
            "send less in one request, or pack the bundle with a larger program"
        )


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


def _tensors(ports: Sequence[Port]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            index,
            port.name,
            datatype_of(port.dtype),
            numpy_dtype(port.dtype),
            port.shape,
            describe_unservable(port.dtype),
        )
        for index, port in enumerate(ports)
    )


def _unknown(kind: str, name: object, known: Mapping[str, Tensor]) -> str:
    if not isinstance(name, str):
        return f"an {kind} has no name; {kind}s are {', '.join(known) or 'none'}"
    hint = validation.nearest(name, known)
    return f"there is no {kind} '{name}'" + (
        f": did you mean '{hint}'?" if hint else f"; {kind}s are {', '.join(known) or 'none'}"
    )


def _wrong_datatype(tensor: Tensor, sent: object) -> str:
    if sent == "BYTES":
        return f"input '{tensor.name}' was sent as BYTES, which no model here takes; {tensor.datatype} is wanted"
    return f"input '{tensor.name}' was sent as {sent}; {tensor.datatype} is wanted"


def _wrong_shape(tensor: Tensor, sent: object) -> str:
    shown = sent if isinstance(sent, list | tuple) else "no list of integers"
    wanted = ", ".join(str(axis) for axis in tensor.axes)
    return f"input '{tensor.name}' has shape {list(shown) if isinstance(shown, tuple) else shown}; [{wanted}] is wanted"
