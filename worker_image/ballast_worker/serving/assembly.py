# SPDX-License-Identifier: Apache-2.0
"""From the inputs of several calls to those of one execution, and from its outputs back to theirs.

What a program takes beyond the calls is zeros, and what it gives beyond them is cut off.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ballast_worker.build.builder import Dimensions
from ballast_worker.bundle.dimensions import concrete_shape
from ballast_worker.serving.call import Array, Call


def assemble(calls: Sequence[Call], shapes: Sequence[tuple[int, ...]], *, batched: bool) -> list[Array]:
    """Inputs of one execution.

    Args:
        calls: in the order in which their rows go in.
        shapes: of the program's inputs.
        batched: the first axis is the batch; else there is one call.

    Returns:
        One array per input. A single call that fits exactly is passed on without a copy.
    """
    if len(calls) == 1 and all(array.shape == shape for array, shape in zip(calls[0].inputs, shapes, strict=True)):
        return list(calls[0].inputs)
    return [_assemble([call.inputs[index] for call in calls], shape, batched) for index, shape in enumerate(shapes)]


def _assemble(parts: Sequence[Array], shape: tuple[int, ...], batched: bool) -> Array:  # noqa: FBT001 - inner step
    whole = np.zeros(shape, parts[0].dtype)
    row = 0
    for part in parts:
        target = tuple(slice(size) for size in part.shape)
        if batched:
            target = (slice(row, row + part.shape[0]), *target[1:])
            row += part.shape[0]
        whole[target] = part
    return whole


def cut(
    outputs: Sequence[Array], axes: Sequence[tuple[int | str, ...]], calls: Sequence[Call], *, batched: bool
) -> list[list[Array]]:
    """Outputs of each call: views of the execution's outputs.

    Args:
        outputs: of the execution.
        axes: of each output, as in the manifest.
        calls: as given to `assemble`.
        batched: the first axis is the batch.
    """
    answers = []
    row = 0
    for call in calls:
        dimensions = tuple(sorted(call.dimensions.items()))
        shapes = [_shape(output, dimensions) for output in axes]
        if batched:
            rows = shapes[0][0]
            answers.append(
                [
                    _view(output, (slice(row, row + rows), *map(slice, shape[1:])), shape)
                    for output, shape in zip(outputs, shapes, strict=True)
                ]
            )
            row += rows
        else:
            answers.append(
                [_view(output, tuple(map(slice, shape)), shape) for output, shape in zip(outputs, shapes, strict=True)]
            )
    return answers


def _view(output: Array, index: tuple[slice, ...], shape: tuple[int, ...]) -> Array:
    return output if output.shape == shape else output[index]


@functools.lru_cache(maxsize=4096)
def _shape(axes: tuple[int | str, ...], dimensions: Dimensions) -> tuple[int, ...]:
    values: Mapping[str, int] = dict(dimensions)
    return concrete_shape(axes, values)
