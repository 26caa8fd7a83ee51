# SPDX-License-Identifier: Apache-2.0
"""What an exported function may contain: mathematics, and neither weights, foreign code nor talk with the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.extend import mlir as portable
from jax.extend.mlir import ir
from jax.interpreters import mlir

from ballast_worker.bundle.errors import BundleError

MAX_CONSTANT_BYTES = 1 << 20
"""Bytes that all constants of a function may have together; weights are arguments, so that they can be swapped."""

_LAPACK = (
    "potrf", "geqrf", "orgqr", "ungqr", "syevd", "heevd", "geev", "gesdd", "getrf", "sytrd", "hetrd", "gehrd", "gees",
    "trsm", "gtsv",
)  # fmt: skip
CUSTOM_CALLS: frozenset[str] = frozenset(
    {
        *(f"lapack_{kind}{routine}_ffi" for routine in _LAPACK for kind in "sdcz"),
        *("cu_lu_pivots_to_permutation", "cusolver_getrf_ffi", "cusolver_geqrf_ffi", "cusolver_orgqr_ffi"),
        *(
            "cusolver_potrf_ffi",
            "cusolver_syevd_ffi",
            "cusolver_gesvd_ffi",
            "cusolver_gesvdj_ffi",
            "cusolver_sytrd_ffi",
        ),
        *("cusparse_gtsv2_ffi", "cu_threefry2x32_ffi", "shape_assertion", "Sharding", "annotate_device_placement"),
        *("stablehlo.dynamic_reduce_window", "stablehlo.dynamic_rng_bit_generator", "stablehlo.dynamic_top_k"),
        *("ApproxTopK", "stablehlo.dynamic_approx_top_k", "AllocateBuffer"),
    }
)
"""Custom calls a function may make: those whose meaning JAX keeps stable. Anything else is code of unknown effect, or an
address in the process that exported it (a Python callback)."""

FORBIDDEN_OPERATIONS: frozenset[str] = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
"""Operations that talk to the host while the function runs."""


@dataclass(frozen=True, slots=True)
class Module:
    """What lies inside an exported function.

    Attributes:
        constants: Bytes and type of each constant that is more than one repeated value, largest first.
        custom_calls: Targets of its custom calls.
        operations: Names of all its operations.
    """

    constants: tuple[tuple[int, str], ...]
    custom_calls: frozenset[str]
    operations: frozenset[str]


def check_module(exported: export.Exported, *, where: str) -> None:
    """Refuse large constants, foreign custom calls and talking to the host.

    Raises:
        BundleError: `BundleInvalid`.
    """
    module = look_inside(exported, where=where)
    if (total := sum(nbytes for nbytes, _ in module.constants)) > MAX_CONSTANT_BYTES:
        largest = ", ".join(f"{kind} ({nbytes} bytes)" for nbytes, kind in module.constants[:3])
        raise _invalid(
            where,
            f"holds {total} bytes of constants, the limit is {MAX_CONSTANT_BYTES}; the largest: {largest}. The function uses "
            "arrays that are not its arguments: pass them in through `parameters`, so that they become weights, instead "
            "of capturing them from the enclosing scope",
        )
    if foreign := sorted(module.custom_calls - CUSTOM_CALLS):
        raise _invalid(
            where,
            f"makes the custom call {foreign[0]!r}, which is not one that JAX keeps stable; callbacks into Python and "
            "hand-written kernels cannot be served from a bundle",
        )
    if talking := sorted(module.operations & FORBIDDEN_OPERATIONS):
        raise _invalid(where, f"uses {talking[0]}: a function may not talk to the host while it runs")


def look_inside(exported: export.Exported, *, where: str) -> Module:
    """Read the constants and custom calls of a function.

    Raises:
        BundleError: `BundleInvalid` when the StableHLO inside cannot be read.
    """
    constants: list[tuple[int, str]] = []
    calls: set[str] = set()
    names: set[str] = set()
    with mlir.make_ir_context():
        try:
            module = portable.deserialize_portable_artifact(exported.mlir_module_serialized)
            for operation in _operations(module.operation):
                names.add(operation.name)
                if operation.name == "stablehlo.custom_call":
                    calls.add(ir.StringAttr(operation.attributes["call_target_name"]).value)
                elif operation.name == "stablehlo.constant":
                    value = operation.attributes["value"]
                    if not getattr(value, "is_splat", False):
                        constants.append((_type_bytes(value.type), str(value.type)))
        except Exception as error:  # MLIR raises its own error types, which differ between releases
            raise _invalid(
                where, f"its StableHLO cannot be read by jax {jax.__version__}: {str(error)[:200]}"
            ) from error
    if "func.func" not in names:
        raise _invalid(where, "its StableHLO holds no function")
    return Module(tuple(sorted(constants, reverse=True)), frozenset(calls), frozenset(names))


def _operations(root: Any) -> Iterator[Any]:
    # A stack of its own: nesting in a damaged or hostile module must not exhaust Python's.
    stack = [root]
    while stack:
        operation = stack.pop()
        yield operation
        for region in operation.regions:
            for block in region.blocks:
                stack.extend(child.operation for child in block.operations)


def _type_bytes(kind: Any) -> int:
    tensor = ir.RankedTensorType(kind)
    element: Any = tensor.element_type
    complex_element = isinstance(element, ir.ComplexType)
    bits = 2 * int(element.element_type.width) if complex_element else int(getattr(element, "width", 64))
    return math.prod(tensor.shape) * max(bits, 8) // 8


def _invalid(where: str, message: str) -> BundleError:
    return BundleError("BundleInvalid", f"{where}: {message}")
