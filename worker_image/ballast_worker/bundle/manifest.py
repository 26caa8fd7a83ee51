# SPDX-License-Identifier: Apache-2.0
"""The manifest of a bundle: what the model is called, which files it has, and which shapes go in and out.

The manifest holds the digests of the other two files, so the digest of its own bytes identifies the whole bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from ballast_worker.bundle.dimensions import MAX_SIZE, NAME, RESERVED, concrete_shape, evaluate, names_in
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import describe
from ballast_worker.bundle.layout import DTYPES, TensorSpec
from ballast_worker.bundle.strict_yaml import parse

FORMAT = "ballast.dev/bundle/v1"
MANIFEST_FILE = "manifest.yaml"
FUNCTION_FILE = "function.stablehlo"
WEIGHTS_FILE = "weights.safetensors"

MAX_MANIFEST_BYTES = 1 << 20
"""Bytes of `manifest.yaml`."""

MAX_TENSORS = 65536
MAX_INPUTS = 256
MAX_PROGRAMS = 256
MAX_DIMENSIONS = 16
MAX_RANK = 16
MAX_LINES = 64
MAX_BYTES = 2**50
"""Bytes that any size in a manifest may state: one pebibyte."""

DEFAULT_MAX_BATCH = 32
"""Largest batch of the default programs, where the batch is the only dimension."""


def tensor_name(name: str) -> str:
    """Check the name of a tensor: printable, so that it can stand in logs, and unambiguous in the weights digest.

    Raises:
        ValueError: Empty, longer than 512 characters, or with characters that cannot be printed.
    """
    if not name or len(name) > 512 or not name.isprintable():
        raise ValueError("a tensor's name is 1 to 512 printable characters")
    return name


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"dtype is not one of {', '.join(sorted(DTYPES))}")
    return name


def _file(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", name) or ".." in name:
        raise ValueError(
            "a file is named by a plain name inside the bundle: letters, digits, '.', '_' and '-', no directories"
        )
    return name


def _dimension(name: str) -> str:
    if not NAME.match(name) or name in RESERVED:
        raise ValueError(
            "a dimension's name is a letter or '_', then at most 63 letters, digits and '_', and no function's name"
        )
    return name


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}\Z")]
DimensionName = Annotated[str, AfterValidator(_dimension)]
TensorName = Annotated[str, AfterValidator(tensor_name)]
Dtype = Annotated[str, AfterValidator(_dtype)]
FileName = Annotated[str, AfterValidator(_file)]
ByteCount = Annotated[int, Field(ge=0, le=MAX_BYTES, strict=True)]
Axis = (
    Annotated[int, Field(ge=0, le=MAX_SIZE, strict=True)]
    | Annotated[str, Field(min_length=1, max_length=256, strict=True)]
)


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class FunctionFile(_Part):
    """The exported function.

    Attributes:
        file: Plain name of the artefact of `jax.export` inside the bundle.
        digest: SHA-256 of the file.
        bytes: Bytes of the file.
        platforms: Platforms it was lowered for.
        jax_version: Release of JAX that exported it, for people.
        calling_convention: Calling-convention version of `jax.export`.
    """

    file: FileName = FUNCTION_FILE
    digest: Digest
    bytes: ByteCount
    platforms: Annotated[tuple[Literal["cpu", "cuda"], ...], Field(min_length=1, max_length=2)]
    jax_version: Annotated[str, Field(min_length=1, max_length=64)]
    calling_convention: Annotated[int, Field(ge=1, le=10_000, strict=True)]


class WeightsFile(_Part):
    """The weights.

    Attributes:
        file: Plain name of the safetensors file inside the bundle.
        digest: Tree hash over the tensors (`ballast_worker.bundle.digests.weights_digest`), not of the file.
        bytes: Bytes of the file, header included.
        tensors: Names of the tensors in the order in which the function takes them.
    """

    file: FileName = WEIGHTS_FILE
    digest: Digest
    bytes: ByteCount
    tensors: Annotated[tuple[TensorName, ...], Field(max_length=MAX_TENSORS)]

    @field_validator("tensors")
    @classmethod
    def _unique(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        _distinct("tensor", names)
        return names


class Port(_Part):
    """One input or output.

    Attributes:
        name: What clients call it.
        dtype: Canonical numpy or ml_dtypes name.
        shape: Sizes, names of dimensions, and (outputs only) expressions over dimensions.
    """

    name: TensorName
    dtype: Dtype
    shape: Annotated[tuple[Axis, ...], Field(max_length=MAX_RANK)]

    def concrete(self, program: Mapping[str, int]) -> TensorSpec:
        """Name, dtype and shape for one program.

        Raises:
            ValueError: A dimension has no value in `program`.
        """
        return TensorSpec(self.name, self.dtype, concrete_shape(self.shape, program))


class Line(_Part):
    """A line that a generative bundle asks for in the device memory plan: so many bytes, or units of so many bytes.

    Attributes:
        name: Name of the line in the plan.
        bytes: Bytes of the whole line; or
        unit: Bytes of one unit, and
        count: Number of units.
        minimum: The least that the bundle can work with: bytes, or units where `unit` is given.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][A-Za-z0-9-]{0,62}\Z")]
    bytes: ByteCount | None = None
    unit: ByteCount | None = None
    count: Annotated[int, Field(ge=0, le=MAX_BYTES, strict=True)] | None = None
    minimum: ByteCount = 0

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.bytes is None) == (self.unit is None) or (self.unit is None) != (self.count is None):
            raise ValueError(f"line {self.name!r} has either 'bytes', or 'unit' and 'count'")
        size = self.bytes if self.bytes is not None else self.count
        if size is not None and self.minimum > size:
            raise ValueError(f"line {self.name!r} has a minimum of {self.minimum}, above its own size {size}")
        return self


class Manifest(_Part):
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
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?\Z")]
    description: Annotated[str, Field(max_length=4096)] = ""
    function: FunctionFile
    weights: WeightsFile
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
        _distinct("dimension", self.dimensions)
        _distinct("input", [port.name for port in self.inputs])
        _distinct("output", [port.name for port in self.outputs])
        _distinct("line", [line.name for line in self.lines])
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
    document = parse(data, file=file, limit=MAX_MANIFEST_BYTES)
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise BundleError("BundleInvalid", describe(error, Manifest, file=file)) from error


def _distinct(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{kind} {name!r} is named twice")
        seen.add(name)
