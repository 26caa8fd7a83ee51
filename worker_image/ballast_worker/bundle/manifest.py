# SPDX-License-Identifier: Apache-2.0
"""The manifest of a bundle: what the model is called, which files it has, and which shapes go in and out.

The manifest holds the digests of the other two files, so the digest of its own bytes identifies the whole bundle.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ballast_contract.strict_yaml import StrictYamlError, parse
from ballast_worker.bundle.dimensions import MAX_SIZE, NAME, evaluate, names_in
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import describe
from ballast_worker.bundle.parts import (
    FUNCTION_FILE,
    WEIGHTS_FILE,
    DimensionName,
    FunctionPart,
    Line,
    Part,
    Port,
    WeightsPart,
    distinct,
)

__all__ = [
    "FUNCTION_FILE",
    "WEIGHTS_FILE",
    "FunctionPart",
    "Line",
    "Manifest",
    "Port",
    "WeightsPart",
    "default_programs",
    "read_manifest",
]

FORMAT = "ballast.dev/bundle/v1"
MANIFEST_FILE = "manifest.yaml"

MAX_MANIFEST_BYTES = 1 << 20
"""Bytes of `manifest.yaml`."""

MAX_INPUTS = 256
MAX_PROGRAMS = 256
MAX_DIMENSIONS = 16
MAX_LINES = 64

DEFAULT_MAX_BATCH = 32
"""Largest batch of the default programs, where the batch is the only dimension."""


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?", name):
        raise ValueError(
            "a bundle's name is at most 253 letters, digits, '.', '_', '/' and '-', the first and the last a letter or digit"
        )
    return name


class Manifest(Part):
    """Everything a bundle says about itself. Immutable and checked: what passes here is consistent in itself.

    Attributes:
        format: Always `ballast.dev/bundle/v1`.
        name: What the model is called by whoever packed it; serving names come from the InferenceModel.
        description: For people.
        function: The exported function. It takes the weights in order, then the inputs in order.
        weights: The weights.
        dimensions: Names of the symbolic dimensions.
        batch_dimension: The dimension along which requests may be put together: the first axis of every input and
            output. None when requests must be run one by one.
        inputs: In the order of the function's last arguments.
        outputs: In the order of the function's results.
        programs: Values for all dimensions (in the order of `dimensions`) for which the function is compiled. `({},)`
            without dimensions.
        lines: Lines of generative bundles for the device memory plan.
    """

    format: Literal["ballast.dev/bundle/v1"]
    name: Annotated[str, AfterValidator(_name)]
    description: Annotated[str, Field(max_length=4096)] = ""
    function: FunctionPart
    weights: WeightsPart
    dimensions: Annotated[tuple[DimensionName, ...], Field(max_length=MAX_DIMENSIONS)] = ()
    batch_dimension: DimensionName | None = None
    inputs: Annotated[tuple[Port, ...], Field(max_length=MAX_INPUTS)]
    outputs: Annotated[tuple[Port, ...], Field(min_length=1, max_length=MAX_INPUTS)]
    programs: Annotated[
        tuple[dict[DimensionName, Annotated[int, Field(ge=1, le=MAX_SIZE, strict=True)]], ...],
        Field(min_length=1, max_length=MAX_PROGRAMS),
    ]
    lines: Annotated[tuple[Line, ...], Field(max_length=MAX_LINES)] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_programs(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "programs" in data:
            return data
        dimensions = data.get("dimensions") or ()
        batch = data.get("batchDimension", data.get("batch_dimension"))
        if not dimensions or (batch is not None and list(dimensions) == [batch]):
            return {**data, "programs": default_programs(batch if dimensions else None)}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        distinct("dimension", self.dimensions)
        distinct("input", [port.name for port in self.inputs])
        distinct("output", [port.name for port in self.outputs])
        distinct("line", [line.name for line in self.lines])
        if self.function.file == self.weights.file or MANIFEST_FILE in (self.function.file, self.weights.file):
            raise ValueError("function.file, weights.file and manifest.yaml must be three different files")
        if len(set(self.function.platforms)) != len(self.function.platforms):
            raise ValueError("function.platforms names a platform twice")
        self._check_shapes()
        self._check_batch()
        self._check_programs()
        return self

    def _check_shapes(self) -> None:
        used: set[str] = set()
        for kind, ports in (("inputs", self.inputs), ("outputs", self.outputs)):
            for port in ports:
                for axis in port.shape:
                    if isinstance(axis, int):
                        continue
                    where = f"{kind}: {port.name!r} has axis {axis!r}"
                    if kind == "inputs" and not NAME.match(axis):
                        raise ValueError(f"{where}; an input's axis is a size or the name of a dimension")
                    try:
                        unknown = names_in(axis) - set(self.dimensions)
                    except ValueError as error:
                        raise ValueError(f"{where}: {error}") from error
                    if unknown:
                        raise ValueError(f"{where}, but 'dimensions' does not name {', '.join(sorted(unknown))}")
                    if kind == "inputs":
                        used.add(axis)
        if idle := [name for name in self.dimensions if name not in used]:
            raise ValueError(f"dimensions: {', '.join(idle)} is in no input's shape, so no request can tell its value")

    def _check_batch(self) -> None:
        if self.batch_dimension is None:
            return
        if self.batch_dimension not in self.dimensions:
            raise ValueError(f"batchDimension: {self.batch_dimension!r} is not one of 'dimensions'")
        for port in (*self.inputs, *self.outputs):
            if not port.shape or port.shape[0] != self.batch_dimension or self.batch_dimension in port.shape[1:]:
                raise ValueError(
                    f"batchDimension: {self.batch_dimension!r} must be the first axis of every input and output and no other "
                    f"axis, but {port.name!r} has shape {list(port.shape)}; leave batchDimension out to run requests one by one"
                )

    def _check_programs(self) -> None:
        seen = set()
        for index, program in enumerate(self.programs):
            if set(program) != set(self.dimensions):
                raise ValueError(
                    f"programs[{index}] gives values for {', '.join(program) or 'nothing'}; "
                    f"it must give one for each of {', '.join(self.dimensions) or 'no dimension'}"
                )
            key = tuple(program[name] for name in self.dimensions)
            if key in seen:
                raise ValueError(f"programs[{index}] is there twice: {program}")
            seen.add(key)
            for port in (*self.inputs, *self.outputs):
                for axis in port.shape:
                    if isinstance(axis, str):
                        try:
                            evaluate(axis, program)
                        except ValueError as error:
                            raise ValueError(f"programs[{index}]: {port.name!r}: {error}") from error

    def canonical_programs(self) -> tuple[dict[str, int], ...]:
        """The programs with their dimensions in the order of `dimensions`, for names that do not depend on spelling."""
        return tuple({name: program[name] for name in self.dimensions} for program in self.programs)


def default_programs(batch_dimension: str | None, *, largest: int = DEFAULT_MAX_BATCH) -> list[dict[str, int]]:
    """Programs for batches 1, 2, 4, ... up to `largest` (which is always there); one program without a batch dimension.

    Raises:
        ValueError: `largest` is below 1.
    """
    if batch_dimension is None:
        return [{}]
    if largest < 1:
        raise ValueError(f"the largest batch is {largest}; it must be at least 1")
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    if sizes[-1] != largest:
        sizes.append(largest)
    return [{batch_dimension: size} for size in sizes]


def read_manifest(data: bytes, *, file: str = MANIFEST_FILE) -> Manifest:
    """Parse and check the bytes of a manifest; `file` names it in messages.

    Raises:
        BundleError: `BundleInvalid`, with every fault that was found.
    """
    try:
        return Manifest.model_validate(parse(data, file=file, limit=MAX_MANIFEST_BYTES))
    except StrictYamlError as error:
        raise BundleError("BundleInvalid", str(error)) from error
    except ValidationError as error:
        raise BundleError("BundleInvalid", describe(error, Manifest, file=file)) from error
