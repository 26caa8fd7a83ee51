# SPDX-License-Identifier: Apache-2.0
"""The only place that packs weights: where each tensor of a model lies in its region and in its extent.

Host regions and device extents hold the same bytes at the same offsets, so that a load is one plain copy. Whoever
changes the packing raises `LAYOUT_VERSION`, because host copies outlive the process that made them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

ALIGNMENT = 256
"""Bytes; every tensor starts at a multiple of it, as XLA's own buffers do."""

LAYOUT_VERSION = 1
"""Part of the key of every host copy; raised whenever `pack` would answer differently for the same tensors."""

_NUMPY_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_ML_DTYPES = (
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip

DTYPES: frozenset[str] = frozenset(_NUMPY_DTYPES + _ML_DTYPES)
"""Every dtype a tensor may have. Types below one byte (int4, float4_e2m1fn, ...) are not among them: a view of the arena
cannot start inside a byte."""

SUB_BYTE_DTYPES = re.compile(r"u?int[124]|float[46]_.*")
"""Names of types below one byte, all of each name."""


@functools.cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of a canonical name in `DTYPES`.

    Raises:
        ValueError: The name is not in `DTYPES`.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(sorted(DTYPES))}")
    return np.dtype(name) if name in _NUMPY_DTYPES else np.dtype(getattr(ml_dtypes, name))


def align(nbytes: int) -> int:
    """`nbytes` rounded up to `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of one tensor.

    Attributes:
        name: Unique within its bundle.
        dtype: A canonical name in `DTYPES`, such as `float32` or `bfloat16`.
        shape: Elements per axis; empty for a scalar, and zeros are legal.

    Raises:
        ValueError: The dtype is not in `DTYPES`, or an axis is negative.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        numpy_dtype(self.dtype)
        if any(axis < 0 for axis in self.shape):
            raise ValueError(f"tensor {self.name!r} has a negative axis: {self.shape}")

    @property
    def nbytes(self) -> int:
        """Bytes of the elements themselves, without any padding."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and the byte where it starts, counted from the start of the region or extent."""

    spec: TensorSpec
    offset: int

    @property
    def end(self) -> int:
        """First byte after the tensor's elements; padding up to the next tensor begins here."""
        return self.offset + self.spec.nbytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor of a model lies.

    Attributes:
        tensors: In argument order, with rising offsets.
        nbytes: Bytes of the whole region or extent, a multiple of `ALIGNMENT`; 0 for a model without weights.
    """

    tensors: tuple[Placed, ...]
    nbytes: int

    @property
    def largest_tensor(self) -> int:
        """Bytes of the largest tensor, 0 without tensors."""
        return max((placed.spec.nbytes for placed in self.tensors), default=0)


def pack(specs: Sequence[TensorSpec]) -> Layout:
    """Place tensors one after the other, each at the next multiple of `ALIGNMENT`, in the order given.

    A tensor without elements takes no room: it shares its offset with the tensor after it, and at the very end its offset
    equals `Layout.nbytes`.
    """
    placed = []
    cursor = 0
    for spec in specs:
        placed.append(Placed(spec, cursor))
        cursor += align(spec.nbytes)
    return Layout(tuple(placed), cursor)
