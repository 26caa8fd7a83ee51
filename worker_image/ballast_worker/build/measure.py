# SPDX-License-Identifier: Apache-2.0
"""Compiling one program, running it on zeros and measuring what the run takes. Runs in the builder process only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export

from ballast_worker.build.errors import ProgramTooLargeError
from ballast_worker.build.executables import ArrayType, Executable, deserialize, serialize
from ballast_worker.bundle.layout import TensorSpec, numpy_dtype


@dataclass(frozen=True, slots=True)
class Run:
    """What a program's runs on zeros showed. Bytes of device memory, seconds of the second run.

    Attributes:
        data: the serialised executable, as it was run.
        scratch_bytes: beyond weights, inputs and outputs.
        io_bytes: inputs and outputs.
        code_bytes: of generated code.
        seconds: from the start of the second run until all its outputs were ready.
    """

    data: bytes
    scratch_bytes: int
    io_bytes: int
    code_bytes: int
    seconds: float


class Zeros:
    """Arrays of zeros, one for each type: arguments of equal type share their memory, so that a model of many equal
    layers is measured with little more than one of them.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self._arrays: dict[ArrayType, jax.Array] = {}

    def __call__(self, type_: ArrayType) -> jax.Array:
        """The array of a type, made at first use."""
        array = self._arrays.get(type_)
        if array is None:
            array = jax.device_put(np.zeros(type_.shape, numpy_dtype(type_.dtype)), self._device)
            self._arrays[type_] = array
        return array


def compile_and_run(
    exported: export.Exported,
    arguments: Sequence[TensorSpec],
    *,
    weights: int,
    zeros: Zeros,
    device: jax.Device,
    memory_bytes: int,
    progress: Callable[[str], None],
) -> Run:
    """Compile a function for concrete types, serialise it, load the bytes again and run what was loaded.

    Args:
        exported: the function; it takes the arguments as a flat list.
        arguments: types of the weights and then of the inputs, without symbolic dimensions.
        weights: how many of the arguments are weights.
        zeros: where arguments come from.
        device: what to compile for.
        memory_bytes: which weights, inputs, outputs and scratch may take together. Held to here on cpu alone, where device
            memory is host memory and nothing else ends a run but the kernel; elsewhere the allocator keeps to it.
        progress: told what begins.

    Raises:
        ProgramTooLargeError: on cpu, before anything is run.
        Exception: whatever the compiler or the run raises.
    """
    progress("compiling")
    types: list[Any] = [
        jax.ShapeDtypeStruct(spec.shape, numpy_dtype(spec.dtype))  # type: ignore[no-untyped-call]
        for spec in arguments
    ]
    # A weight that the function does not use is an argument like any other.
    compiled = jax.jit(exported.call, keep_unused=True).lower(*types).compile()
    data = serialize(compiled)
    static = compiled.memory_analysis()
    temporary = static.temp_size_in_bytes if static is not None else 0
    executable = deserialize(data, device)
    del compiled
    inputs = sum(type_.nbytes for type_ in executable.arguments[weights:])
    outputs = sum(type_.nbytes for type_ in executable.results)
    held = sum(type_.nbytes for type_ in executable.arguments[:weights])
    if device.platform == "cpu" and held + inputs + outputs + temporary > memory_bytes:
        raise ProgramTooLargeError(
            f"a run takes {held + inputs + outputs + temporary} bytes ({held} of weights, {inputs + outputs} of inputs and "
            f"outputs, {temporary} of scratch) and the device budget is {memory_bytes}: name fewer rows in the manifest's "
            "programs, or set a larger device.budget"
        )
    progress("running")
    values = [zeros(type_) for type_ in executable.arguments]
    _run(executable, values)
    began = time.perf_counter()
    _run(executable, values)
    seconds = time.perf_counter() - began
    scratch = max(temporary, observed_scratch(executable, values, device))
    # The CUDA runtime does not tell; what it loads is what was serialised (measured: 50 KB per program, either way).
    code = len(data) if device.platform != "cpu" else executable.code_bytes
    return Run(data, scratch, inputs + outputs, code, seconds)


def _run(executable: Executable, values: Sequence[jax.Array]) -> list[jax.Array]:
    results = executable.enqueue(values)
    for result in results:
        result.block_until_ready()
    return results


def observed_scratch(executable: Executable, values: Sequence[jax.Array], device: jax.Device) -> int:
    """Scratch of one run as the allocator saw it, or 0 where it keeps no peak.

    The peak cannot be reset, so memory is filled up to it first; then what a run adds to it is its own.
    """
    before = _statistics(device)
    if before is None:
        return 0
    filler = None
    if before[1] > before[0]:
        try:
            filler = jax.device_put(np.zeros(before[1] - before[0], np.uint8), device)
            filler.block_until_ready()
        except RuntimeError:
            return 0  # the peak was in pieces; the compiler's figure stands
    full = _statistics(device)
    results = _run(executable, values)
    after = _statistics(device)
    del filler
    if full is None or after is None or after[1] == before[1]:
        return 0
    taken = sum(math.ceil(result.nbytes / 256) * 256 for result in results)
    return max(0, after[1] - full[0] - taken)


def _statistics(device: jax.Device) -> tuple[int, int] | None:
    """Bytes in use and their peak."""
    statistics: dict[str, Any] | None = device.memory_stats()
    if not statistics or "peak_bytes_in_use" not in statistics:
        return None
    return int(statistics["bytes_in_use"]), int(statistics["peak_bytes_in_use"])
