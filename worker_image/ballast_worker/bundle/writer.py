# SPDX-License-Identifier: Apache-2.0
"""Packing any JAX function and its parameters as a bundle: the same bytes for the same inputs, all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from blake3 import blake3

from ballast_worker.bundle.arguments import check_arguments, check_inputs
from ballast_worker.bundle.digests import bytes_digest, weights_digest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.exporting import export_flat
from ballast_worker.bundle.exporting import output_names as output_names_of
from ballast_worker.bundle.function import check_exported
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.bundle.manifest import (
    FORMAT,
    FUNCTION_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    WEIGHTS_FILE,
    default_programs,
    read_manifest,
)
from ballast_worker.bundle.module import check_module
from ballast_worker.bundle.parameters import host_array, named_leaves
from ballast_worker.bundle.placing import directory_beside, move_into_place, write_file
from ballast_worker.bundle.reader import MAX_FUNCTION_BYTES, Bundle, open_bundle
from ballast_worker.bundle.replacing import files_to_replace, remove_bundle
from ballast_worker.bundle.safetensors import build_header


def pack_bundle(
    path: str | os.PathLike[str],
    *,
    name: str,
    function: Callable[..., Any],
    parameters: Any,
    inputs: Sequence[tuple[str, Any, Sequence[int | str]]],
    batch_dimension: str | None = None,
    programs: Sequence[Mapping[str, int]] | None = None,
    max_batch: int | None = None,
    constraints: Sequence[str] = (),
    platforms: Sequence[str] = ("cpu", "cuda"),
    output_names: Sequence[str] | None = None,
    description: str = "",
    lines: Sequence[Mapping[str, Any]] = (),
    overwrite: bool = False,
) -> Bundle:
    """Pack `function(parameters, *inputs)` as a bundle at `path`.

    The bundle appears at `path` whole or not at all, and is byte for byte the same for the same arguments and JAX release.

    Args:
        path: The bundle's directory, made here, with missing parents.
        name: Name in the manifest.
        function: Any function that JAX can trace. Returns an array or a tree of arrays.
        parameters: Its first argument: a tree of arrays. Each leaf becomes a weight, named after its path.
        inputs: Name, dtype and shape of each further argument. A text in a shape names a symbolic dimension.
        batch_dimension: The dimension along which requests may be put together: first in every input and output.
        programs: Values for all dimensions for which workers compile the function. May be left out when the batch is the
            only dimension, or there is none.
        max_batch: Largest batch of the programs when `programs` is left out; they are 1, 2, 4, ... up to it.
        constraints: What JAX may assume about dimensions, such as `sequence <= 512`.
        platforms: Platforms to lower for: `cpu`, `cuda` or both.
        output_names: Names of the outputs. By default the keys when the function returns a dict, else `output`, or
            `output_0`, `output_1`, ...
        description: For people.
        lines: Lines of a generative bundle in the device memory plan.
        overwrite: Replace a bundle or an empty directory at `path`.

    Raises:
        FileExistsError: Something is at `path` and `overwrite` is false, or it is no bundle. It is left alone.
        OSError: `path` cannot be written.
        BundleError: `BundleInvalid`: dtypes that cannot be served, weights that the function ignores, constants over
            the limit, arguments that contradict each other.
        Exception: Whatever tracing `function` raises.
    """
    target = Path(path)
    files_to_replace(target, overwrite=overwrite)
    check_arguments(
        function=function,
        max_batch=max_batch,
        texts={"name": name, "batch_dimension": batch_dimension, "description": description},
        lists={"constraints": constraints, "platforms": platforms, "output_names": output_names},
        dicts={"programs": programs, "lines": lines},
    )
    ports = check_inputs(inputs)
    leaves, structure = named_leaves(parameters)
    specs = [spec for spec, _ in leaves]
    dimensions = list(dict.fromkeys(axis for _, _, shape in ports for axis in shape if isinstance(axis, str)))
    exported, results = export_flat(name, function, specs, structure, ports, dimensions, constraints, platforms)
    artefact = bytes(exported.serialize())
    if len(artefact) > MAX_FUNCTION_BYTES:
        check_module(exported, where=FUNCTION_FILE)
        raise BundleError(
            "BundleInvalid", f"the function takes {len(artefact)} bytes; at most {MAX_FUNCTION_BYTES} are read"
        )
    names = output_names_of(output_names, results)
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "description": description,
        "function": {
            "file": FUNCTION_FILE,
            "digest": bytes_digest(artefact),
            "bytes": len(artefact),
            "platforms": list(platforms),
            "jaxVersion": jax.__version__,
            "callingConvention": exported.calling_convention_version,
        },
        "weights": {"file": WEIGHTS_FILE, "digest": "", "bytes": 0, "tensors": [spec.name for spec in specs]},
        "dimensions": dimensions,
        "batchDimension": batch_dimension,
        "inputs": [{"name": port, "dtype": dtype, "shape": list(shape)} for port, dtype, shape in ports],
        "outputs": [
            {"name": port, "dtype": aval.dtype.name, "shape": [_axis(axis) for axis in aval.shape]}
            for port, aval in zip(names, exported.out_avals, strict=True)
        ],
        "programs": _programs(programs, dimensions, batch_dimension, max_batch),
        "lines": [dict(line) for line in lines],
    }
    with directory_beside(target) as directory:
        write_file(directory / FUNCTION_FILE, [artefact])
        contents: list[bytes] = []
        document["weights"].update(bytes=write_file(directory / WEIGHTS_FILE, _weights(leaves, contents)))
        document["weights"].update(digest=weights_digest(specs, contents))
        text = _yaml({key: value for key, value in document.items() if value not in (None, "", [])})
        if len(text) > MAX_MANIFEST_BYTES:
            raise BundleError(
                "BundleInvalid", f"the manifest takes {len(text)} bytes; at most {MAX_MANIFEST_BYTES} are read"
            )
        check_exported(exported, read_manifest(text), specs, where=FUNCTION_FILE)
        write_file(directory / MANIFEST_FILE, [text])
        open_bundle(directory)
        files = files_to_replace(target, overwrite=overwrite)
        old = move_into_place(directory, target, replace=files is not None)
        if old is not None:
            remove_bundle(old, files or frozenset())
    return open_bundle(target)


def _programs(
    given: Sequence[Mapping[str, int]] | None, dimensions: Sequence[str], batch: str | None, max_batch: int | None
) -> list[dict[str, int]]:
    if given is not None:
        if max_batch is not None:
            raise BundleError("BundleInvalid", "either programs or max_batch says what is compiled, not both")
        unordered = [{key: int(value) for key, value in program.items()} for program in given]
        return [{key: program[key] for key in (*dimensions, *program) if key in program} for program in unordered]
    if dimensions and list(dimensions) != [batch]:
        raise BundleError(
            "BundleInvalid",
            f"programs must give values for the dimensions {', '.join(dimensions)}; they can be left out only when "
            "batch_dimension is the only dimension",
        )
    try:
        return default_programs(
            batch if dimensions else None, **({} if max_batch is None else {"largest": int(max_batch)})
        )
    except ValueError as error:
        raise BundleError("BundleInvalid", str(error)) from error


def _axis(axis: Any) -> int | str:
    return axis if isinstance(axis, int) else str(axis)


def _weights(leaves: Sequence[tuple[TensorSpec, Any]], contents: list[bytes]) -> Iterator[bytes | memoryview]:
    yield build_header([spec for spec, _ in leaves])
    for spec, leaf in leaves:
        data = memoryview(host_array(spec, leaf).reshape(-1).view(np.uint8).data)
        contents.append(blake3(data).digest())
        yield data


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _yaml(document: Mapping[str, Any]) -> bytes:
    text = yaml.dump(
        document, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text.encode()
