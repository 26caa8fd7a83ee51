# SPDX-License-Identifier: Apache-2.0
"""Exporting a function as one flat function of weights and inputs, without traces of the machine that does it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
from jax import export
from jax.extend import mlir as portable
from jax.extend.core import Literal
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec


def export_flat(
    name: str,
    function: Callable[..., Any],
    specs: Sequence[TensorSpec],
    structure: Any,
    ports: Sequence[tuple[str, str, tuple[int | str, ...]]],
    dimensions: Sequence[str],
    constraints: Sequence[str],
    platforms: Sequence[str],
) -> tuple[export.Exported, Any]:
    """Export `function(parameters, *inputs)` as `f(*weights, *inputs)` that returns a flat tuple.

    Args:
        name: Name of the compiled module.
        function: Any function that JAX can trace.
        specs: The weights.
        structure: Tree of the parameters whose leaves are the weights.
        ports: Name, dtype and shape of each input.
        dimensions: Names of the symbolic dimensions.
        constraints: What JAX may assume about them.
        platforms: Platforms to lower for.

    Returns:
        The exported function, and the tree of its result with integers for leaves.

    Raises:
        BundleError: `BundleInvalid`: JAX cannot read the dimensions or constraints, or the function ignores a weight.
    """
    results: list[Any] = []

    def flat(*arrays: Any) -> tuple[Any, ...]:
        weights = jax.tree.unflatten(structure, arrays[: len(specs)])
        result = function(weights, *arrays[len(specs) :])
        results.append(jax.tree.map(lambda _: 0, result))
        return tuple(jax.tree.leaves(result))

    flat.__name__ = flat.__qualname__ = re.sub(r"\W", "_", name)  # what profilers show
    symbols: dict[str, Any] = {}
    if dimensions:
        try:
            sizes = export.symbolic_shape(", ".join(dimensions), constraints=constraints)
        except ValueError as error:
            raise BundleError("BundleInvalid", f"dimensions {', '.join(dimensions)}: {error}") from error
        symbols = dict(zip(dimensions, sizes, strict=True))
    arguments = [_struct(spec.shape, spec.dtype) for spec in specs]
    arguments += [
        _struct(tuple(symbols.get(cast("str", axis), axis) for axis in shape), dtype) for _, dtype, shape in ports
    ]
    with _no_source_locations():
        # keep_unused: the function takes exactly the arrays that the manifest lists, also an input it ignores.
        jitted = jax.jit(flat, keep_unused=True)
        _refuse_unused(specs, jitted.trace(*arguments).jaxpr.jaxpr)
        exported = export.export(jitted, platforms=tuple(platforms))(*arguments)
    return _for_older_releases(exported), results[-1]


def _for_older_releases(exported: export.Exported) -> export.Exported:
    """The same function in the StableHLO of twelve weeks ago, where it can be expressed in that.

    JAX goes back four weeks, which is less than the time between two of its minor releases: workers of the older one
    could not read the bundle.
    """
    target = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_12)
    with mlir.make_ir_context():
        module = portable.deserialize_portable_artifact(exported.mlir_module_serialized)
        try:
            older = portable.serialize_portable_artifact(module, target, True)
        except Exception:  # noqa: BLE001 - of a type that differs between releases: it needs something newer
            return exported
    return dataclasses.replace(exported, mlir_module_serialized=older)


def _refuse_unused(weights: Sequence[TensorSpec], jaxpr: Any) -> None:
    used = {variable for variable in jaxpr.outvars if not isinstance(variable, Literal)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not used.isdisjoint(equation.outvars):
            used.update(variable for variable in equation.invars if not isinstance(variable, Literal))
    specs = [spec for spec, variable in zip(weights, jaxpr.invars, strict=False) if variable not in used]
    if specs:
        total = sum(spec.nbytes for spec in specs)
        raise BundleError(
            "BundleInvalid",
            f"{len(specs)} parameters ({total} bytes) are never used by the function and would take device memory for nothing: "
            f"{', '.join(spec.name for spec in specs[:5])}{', ...' if len(specs) > 5 else ''}; leave them out of `parameters`",
        )


_struct: Any = jax.ShapeDtypeStruct  # untyped in JAX
_update: Any = jax.config.update


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    # Paths and line numbers of the packing machine would make equal functions differ.
    settings = {"jax_traceback_in_locations_limit": 0, "jax_include_full_tracebacks_in_locations": True}
    before = {key: getattr(jax.config, key) for key in settings}
    try:
        for key, value in settings.items():
            _update(key, value)
        yield
    finally:
        for key, value in before.items():
            _update(key, value)


def output_names(given: Sequence[str] | None, result: Any) -> list[str]:
    """Names of the outputs: as given, or the keys of a dict, or `output`, or `output_0`, `output_1`, ...

    Raises:
        BundleError: `BundleInvalid`: not one name for each output.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(result)[0]]
    if given is not None:
        if len(given) != len(paths):
            raise BundleError(
                "BundleInvalid", f"{len(given)} output names for a function that returns {len(paths)} arrays"
            )
        return list(given)
    if isinstance(result, dict):
        return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    return ["output"] if len(paths) == 1 else [f"output_{index}" for index in range(len(paths))]
