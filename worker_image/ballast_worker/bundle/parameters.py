# SPDX-License-Identifier: Apache-2.0
"""From a tree of arrays to named, flat, servable weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ballast_contract.validation import short
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import DTYPES, SUB_BYTE_DTYPES, TensorSpec, numpy_dtype
from ballast_worker.bundle.limits import MAX_TENSORS, tensor_name
from ballast_worker.bundle.safetensors import CODE_OF_DTYPE


def named_leaves(parameters: Any) -> tuple[list[tuple[TensorSpec, Any]], Any]:
    """The arrays of a parameter tree with their specs, in the order of the tree, and the tree's structure.

    A tensor is named after its path, parts joined by dots: `{"layer": [{"kernel": x}]}` has `layer.0.kernel`.

    Raises:
        BundleError: `BundleInvalid`: a leaf is no array, has a dtype that cannot be served, or two have one name.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(parameters)
    leaves: dict[str, tuple[TensorSpec, Any]] = {}
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameters"
        try:
            tensor_name(name)
        except ValueError as error:
            raise BundleError("BundleInvalid", f"parameter {short(name)}: {error}") from error
        if name in leaves:
            raise BundleError(
                "BundleInvalid", f"two parameters are named {name!r}; rename one of the keys that contain dots"
            )
        leaves[name] = (_spec(name, leaf), leaf)
    if len(leaves) > MAX_TENSORS:
        raise BundleError("BundleInvalid", f"{len(leaves)} parameters; a bundle holds at most {MAX_TENSORS}")
    return list(leaves.values()), structure


def check_dtype(what: str, dtype: str) -> str:
    """The canonical dtype name, if arrays of it can be served.

    Raises:
        BundleError: `BundleInvalid`, saying what to use instead.
    """
    if SUB_BYTE_DTYPES.fullmatch(dtype):
        raise BundleError(
            "BundleInvalid",
            f"{what} has dtype {dtype}: elements smaller than a byte are refused; store them as int8 (or packed in uint8) and "
            "unpack them in the function",
        )
    if dtype not in DTYPES or dtype not in CODE_OF_DTYPE:
        raise BundleError("BundleInvalid", f"{what} has dtype {dtype}; known are {', '.join(sorted(CODE_OF_DTYPE))}")
    if jax.dtypes.canonicalize_dtype(numpy_dtype(dtype)) != numpy_dtype(dtype):
        raise BundleError(
            "BundleInvalid",
            f"{what} has dtype {dtype}, and JAX works with 32 bits here; convert it, or set jax_enable_x64 before packing",
        )
    return dtype


def host_array(spec: TensorSpec, leaf: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The leaf on the host: contiguous and little-endian, as the file holds it."""
    dtype = numpy_dtype(spec.dtype)
    return np.ascontiguousarray(np.asarray(leaf), dtype=dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype)


def _dtype_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)  # the same for either byte order
    except TypeError:
        return str(dtype)  # of JAX alone, such as keys of random numbers


def _spec(name: str, leaf: Any) -> TensorSpec:
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise BundleError(
            "BundleInvalid",
            f"parameter {name!r} is {type(leaf).__name__} {short(leaf)}, not an array; make it one, or bind it in the function",
        )
    return TensorSpec(
        name, check_dtype(f"parameter {name!r}", _dtype_name(leaf.dtype)), tuple(int(axis) for axis in leaf.shape)
    )
