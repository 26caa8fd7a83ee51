# SPDX-License-Identifier: Apache-2.0
"""The exported function of a bundle: is it what the manifest and the weights say, and is it only mathematics.

The one module of the reading side that imports JAX. It parses what a bundle brings along, so the builder process calls
it, whose death refuses one model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export

from ballast_worker.bundle.dimensions import value_of
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.bundle.manifest import Manifest, Port
from ballast_worker.bundle.module import check_module
from ballast_worker.bundle.reader import Bundle

CALLING_CONVENTIONS: tuple[int, int] = (
    export.minimum_supported_calling_convention_version,
    export.maximum_supported_calling_convention_version,
)
"""Oldest and newest calling convention of `jax.export` that this JAX reads."""


def check_function(bundle: Bundle) -> None:
    """Verify the exported function of `bundle` against its manifest and weights, and that it may be run.

    It takes the weights in argument order and then the inputs in manifest order, returns the outputs, for the stated
    platforms, in a supported calling convention, on one device, without effects, without large constants and without
    foreign code. Nothing is traced, compiled or run.

    Raises:
        BundleError: `BundleInvalid` with the rule it breaks; `SourceNotFound` when the file is gone.
    """
    where = f"{bundle.path}: {bundle.manifest.function.file}"
    data = bundle.function_bytes()
    try:
        _check_convention(bundle.manifest.function.calling_convention, where)
        exported = read_function(data, where=where)
        check_exported(exported, bundle.manifest, [placed.spec for placed in bundle.layout.tensors], where=where)
    except BundleError as error:
        packed_by = bundle.manifest.function.jax_version
        if _release(packed_by) <= _release(jax.__version__):
            raise
        hint = f"it was exported by jax {packed_by}, which is newer; export it with the oldest JAX among your workers"
        raise BundleError(error.reason, f"{error} ({hint})") from error


def read_function(data: bytes, *, where: str) -> export.Exported:
    """The exported function in the bytes of an artefact; `where` names the file in messages.

    Raises:
        BundleError: `BundleInvalid` when it cannot be read.
    """
    try:
        return export.deserialize(bytearray(data))
    except Exception as error:  # damaged bytes surface as whatever the parser stumbled over
        raise BundleError(
            "BundleInvalid",
            f"{where}: not an artefact of jax.export that jax {jax.__version__} reads: {type(error).__name__}: {str(error)[:200]}",
        ) from error


def check_exported(exported: export.Exported, manifest: Manifest, weights: Sequence[TensorSpec], *, where: str) -> None:
    """As `check_function`, for a function that has been read.

    Raises:
        BundleError: `BundleInvalid`.
    """
    _check_convention(exported.calling_convention_version, where)
    stated = manifest.function
    if stated.calling_convention != exported.calling_convention_version:
        raise _invalid(
            where,
            f"calling convention {exported.calling_convention_version}, the manifest's function.callingConvention says "
            f"{stated.calling_convention}",
        )
    if set(exported.platforms) != set(stated.platforms):
        raise _invalid(
            where,
            f"exported for {', '.join(exported.platforms)}, the manifest's function.platforms says {', '.join(stated.platforms)}",
        )
    if exported.nr_devices != 1:
        raise _invalid(where, f"exported for {exported.nr_devices} devices; a worker runs it on one")
    if exported.ordered_effects or exported.unordered_effects:
        raise _invalid(where, "has side effects (debug prints, callbacks); remove them and export again")
    count = len(exported.in_avals)
    flat: Any = jax.tree.structure(((0,) * count, {}))
    if exported.in_tree != flat:
        raise _invalid(
            where, "does not take a flat list of arrays; ballast-bundle pack exports it as f(*weights, *inputs)"
        )
    _check_arguments(exported, manifest, weights, where)
    check_module(exported, where=where)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _check_convention(version: int, where: str) -> None:
    oldest, newest = CALLING_CONVENTIONS
    if not oldest <= version <= newest:
        raise _invalid(
            where,
            f"calling convention {version} is outside the window {oldest} to {newest} that jax {jax.__version__} supports; "
            "export the function again with a JAX release of this window",
        )


def _check_arguments(exported: export.Exported, manifest: Manifest, weights: Sequence[TensorSpec], where: str) -> None:
    expected = len(weights) + len(manifest.inputs)
    if len(exported.in_avals) != expected:
        raise _invalid(
            where,
            f"takes {len(exported.in_avals)} arrays; the bundle has {len(weights)} weights and {len(manifest.inputs)} inputs, "
            f"together {expected}",
        )
    for index, (spec, aval) in enumerate(zip(weights, exported.in_avals[: len(weights)], strict=True)):
        stated = f"{spec.dtype}{list(spec.shape)}"
        if (aval.dtype.name, tuple(map(str, aval.shape))) != (spec.dtype, tuple(map(str, spec.shape))):
            raise _invalid(
                where, f"argument {index} is {_show(aval)}, but the weights file has {stated} as tensor {spec.name!r}"
            )
    probes = _probes(manifest)
    for port, aval in zip(manifest.inputs, exported.in_avals[len(weights) :], strict=True):
        if tuple(map(str, aval.shape)) != tuple(map(str, port.shape)) or aval.dtype.name != port.dtype:
            raise _mismatch("input", port, aval, where)
    if len(exported.out_avals) != len(manifest.outputs):
        raise _invalid(
            where, f"returns {len(exported.out_avals)} arrays, the manifest's outputs are {len(manifest.outputs)}"
        )
    for port, aval in zip(manifest.outputs, exported.out_avals, strict=True):
        if aval.dtype.name != port.dtype or not _same_shape(port.shape, aval.shape, probes):
            raise _mismatch("output", port, aval, where)


def _probes(manifest: Manifest) -> list[Mapping[str, int]]:
    # Two expressions are taken for the same when they agree for every program and for large, unrelated sizes.
    primes = (
        10007,
        20011,
        30011,
        40009,
        50021,
        60013,
        70001,
        80021,
        90001,
        100003,
        110017,
        120011,
        130003,
        140009,
        150001,
        160001,
    )
    shifted = primes[1:] + primes[:1]
    return [
        *manifest.programs,
        dict(zip(manifest.dimensions, primes, strict=False)),
        dict(zip(manifest.dimensions, shifted, strict=False)),
    ]


def _same_shape(stated: Sequence[int | str], actual: Sequence[Any], probes: Sequence[Mapping[str, int]]) -> bool:
    if len(stated) != len(actual):
        return False
    for axis, dimension in zip(map(str, stated), map(str, actual), strict=True):
        if axis == dimension:
            continue
        try:
            if any(value_of(axis, probe) != value_of(dimension, probe) for probe in probes):
                return False
        except ValueError:
            return False
    return True


def _mismatch(kind: str, port: Port, aval: Any, where: str) -> BundleError:
    stated = f"{port.dtype}[{', '.join(map(str, port.shape))}]"
    return _invalid(where, f"{kind} {port.name!r} is {_show(aval)}, the manifest's {kind}s say {stated}")


def _show(aval: Any) -> str:
    return f"{aval.dtype.name}[{', '.join(map(str, aval.shape))}]"


def _invalid(where: str, message: str) -> BundleError:
    return BundleError("BundleInvalid", f"{where}: {message}")
