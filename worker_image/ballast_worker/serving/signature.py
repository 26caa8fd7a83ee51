# SPDX-License-Identifier: Apache-2.0
"""What a model takes and gives, compiled from its manifest so that a request is checked in microseconds.

Every fault of a request is a `RequestError` whose message names the tensor, what was sent and what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ballast_contract import validation
from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.layout import numpy_dtype
from ballast_worker.bundle.manifest import Manifest, Port
from ballast_worker.serving.call import Array
from ballast_worker.serving.datatypes import datatype_of, describe_unservable
from ballast_worker.serving.shown import cut, shown
from ballast_worker.serving.tensors import RequestError, Tensor


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
        if not isinstance(shape, Sequence) or len(shape) != len(tensor.axes):
            raise RequestError(_wrong_shape(tensor, shape))
        axes = tuple(shape)
        if not all(type(axis) is int for axis in axes):
            raise RequestError(_wrong_shape(tensor, shape))
        for axis, wanted in zip(axes, tensor.axes, strict=True):
            if (axis != wanted) if isinstance(wanted, int) else (axis < 1):
                raise RequestError(_wrong_shape(tensor, shape))
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
    name = cut(name)
    hint = validation.nearest(name, known)
    return f"there is no {kind} '{name}'" + (
        f": did you mean '{hint}'?" if hint else f"; {kind}s are {', '.join(known) or 'none'}"
    )


def _wrong_datatype(tensor: Tensor, sent: object) -> str:
    if sent == "BYTES":
        return f"input '{tensor.name}' was sent as BYTES, which no model here takes; {tensor.datatype} is wanted"
    sent = cut(sent) if isinstance(sent, str) else shown(sent)
    return f"input '{tensor.name}' was sent as {sent}; {tensor.datatype} is wanted"


def _wrong_shape(tensor: Tensor, sent: object) -> str:
    sizes = sent if isinstance(sent, Sequence) and not isinstance(sent, str) else None
    told = "no list of integers" if sizes is None else shown(list(sizes))
    wanted = ", ".join(str(axis) for axis in tensor.axes)
    return f"input '{tensor.name}' has shape {told}; [{wanted}] is wanted"
