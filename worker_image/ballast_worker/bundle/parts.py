# SPDX-License-Identifier: Apache-2.0
"""The parts of a manifest: its two files, its inputs and outputs, and lines for the device memory plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, field_validator, model_validator
from pydantic.alias_generators import to_camel

from ballast_worker.bundle.digests import FILE_PREFIX, WEIGHTS_PREFIX
from ballast_worker.bundle.dimensions import MAX_EXPRESSION, MAX_SIZE, NAME, RESERVED, concrete_shape
from ballast_worker.bundle.faults import did_you_mean
from ballast_worker.bundle.layout import DTYPES, SUB_BYTE_DTYPES, TensorSpec
from ballast_worker.bundle.limits import MAX_BYTES, MAX_RANK, MAX_TENSORS, tensor_name

FUNCTION_FILE = "function.stablehlo"
WEIGHTS_FILE = "weights.safetensors"


def _dtype(name: str) -> str:
    if SUB_BYTE_DTYPES.fullmatch(name):
        raise ValueError("elements smaller than a byte are refused; store them as int8, or packed in uint8")
    if name not in DTYPES:
        raise ValueError(f"no such dtype: {did_you_mean(name, DTYPES)}")
    return name


def _file(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", name) or ".." in name:
        raise ValueError(
            "a file is named by a plain name inside the bundle: letters, digits, '.', '_' and '-', no directories"
        )
    return name


def _file_digest(digest: str) -> str:
    if not re.fullmatch(rf"{FILE_PREFIX}[0-9a-f]{{64}}", digest):
        raise ValueError(
            f"a file's digest is {FILE_PREFIX} and 64 hexadecimal digits in lower case, as sha256sum prints them"
        )
    return digest


def _weights_digest(digest: str) -> str:
    if not re.fullmatch(rf"{WEIGHTS_PREFIX}[0-9a-f]{{64}}", digest):
        raise ValueError(
            f"the weights' digest is {WEIGHTS_PREFIX} and 64 hexadecimal digits in lower case; pack the bundle again"
        )
    return digest


def _dimension(name: str) -> str:
    if not NAME.match(name) or name in RESERVED:
        raise ValueError(
            "a dimension's name is a letter or '_', then at most 63 letters, digits and '_', and no function's name"
        )
    return name


def _axis(axis: Any) -> int | str:
    if isinstance(axis, str) and 1 <= len(axis) <= MAX_EXPRESSION:
        return axis
    if isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis <= MAX_SIZE:
        return axis
    raise ValueError(
        f"an axis is a size between 0 and {MAX_SIZE}, the name of a dimension, or an expression of at most {MAX_EXPRESSION} "
        "characters"
    )


def _line(name: str) -> str:
    if not re.fullmatch(r"[a-z][A-Za-z0-9-]{0,62}", name):
        raise ValueError("a line's name is a lower-case letter, then at most 62 letters, digits and '-'")
    return name


FileDigest = Annotated[str, AfterValidator(_file_digest)]
WeightsDigest = Annotated[str, AfterValidator(_weights_digest)]
DimensionName = Annotated[str, AfterValidator(_dimension)]
TensorName = Annotated[str, AfterValidator(tensor_name)]
Dtype = Annotated[str, AfterValidator(_dtype)]
FileName = Annotated[str, AfterValidator(_file)]
ByteCount = Annotated[int, Field(ge=0, le=MAX_BYTES, strict=True)]
Axis = Annotated[int | str, PlainValidator(_axis)]


class Part(BaseModel):
    """Immutable, without unknown keys, spelled in lower camel case in files."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class FunctionPart(Part):
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
    digest: FileDigest
    bytes: ByteCount
    platforms: Annotated[tuple[Literal["cpu", "cuda"], ...], Field(min_length=1, max_length=2)]
    jax_version: Annotated[str, Field(min_length=1, max_length=64)]
    calling_convention: Annotated[int, Field(ge=1, le=10_000, strict=True)]


class WeightsPart(Part):
    """The weights.

    Attributes:
        file: Plain name of the safetensors file inside the bundle.
        digest: Tree hash over the tensors (`ballast_worker.bundle.digests.weights_digest`), not of the file.
        bytes: Bytes of the file, header included.
        tensors: Names of the tensors in the order in which the function takes them.
    """

    file: FileName = WEIGHTS_FILE
    digest: WeightsDigest
    bytes: ByteCount
    tensors: Annotated[tuple[TensorName, ...], Field(max_length=MAX_TENSORS)]

    @field_validator("tensors")
    @classmethod
    def _unique(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        distinct("tensor", names)
        return names


class Port(Part):
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


class Line(Part):
    """A line that a generative bundle asks for in the device memory plan: so many bytes, or units of so many bytes.

    Attributes:
        name: Name of the line in the plan.
        bytes: Bytes of the whole line; or
        unit: Bytes of one unit, and
        count: Number of units.
        minimum: The least that the bundle can work with: bytes, or units where `unit` is given.
    """

    name: Annotated[str, AfterValidator(_line)]
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


def distinct(kind: str, names: Iterable[str]) -> None:
    """Raise ValueError when a name is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{kind} {name!r} is named twice")
        seen.add(name)
