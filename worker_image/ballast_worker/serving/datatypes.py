# SPDX-License-Identifier: Apache-2.0
"""Datatypes of the Open Inference Protocol and the dtypes of arrays: the same thing under two names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DATATYPES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}
"""The protocol's name for each dtype that it can carry."""


def datatype_of(dtype: str) -> str:
    """The protocol's name of a dtype; the dtype's own name in capitals for one that the protocol cannot carry."""
    return DATATYPES.get(dtype, dtype.upper())


def describe_unservable(dtype: str) -> str:
    """Why tensors of a dtype cannot travel, or an empty text when they can."""
    if dtype in DATATYPES:
        return ""
    return f"the protocol has no datatype for {dtype}: pack the bundle with one of {', '.join(sorted(DATATYPES))}"
