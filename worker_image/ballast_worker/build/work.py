# SPDX-License-Identifier: Apache-2.0
"""What the builder process does once its environment is set: check the bundle, then build program after program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from ballast_worker.build.builder import Dimensions
from ballast_worker.build.errors import ProgramTooLargeError
from ballast_worker.build.measure import Zeros, compile_and_run
from ballast_worker.build.record import Measured
from ballast_worker.build.store import ExecutableStore, Key, Runtime
from ballast_worker.bundle import function
from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import open_bundle


def device(backend: str, ordinal: int) -> jax.Device:
    """A device of this process's JAX client; the first call makes the client."""
    return jax.devices(backend)[ordinal]


def build(
    *,
    bundle: Path,
    digest: str,
    programs: Sequence[Dimensions],
    store: Path,
    runtime: Runtime,
    device: jax.Device,
    memory_bytes: int,
    context: Callable[[], int],
    emit: Callable[..., None],
) -> None:
    """Build every program that the store does not have; `emit` is told of each.

    Raises:
        ProgramTooLargeError: a program may not be run with so little memory; the message names it.
        StoreError: the store cannot be written.
        BundleError: the bundle breaks a rule, or is not the one with `digest`.
        Exception: whatever the compiler or a run raises.
    """
    executables = ExecutableStore(store)
    opened = open_bundle(bundle)
    if opened.digest != digest:
        raise BundleError("SourceChanged", f"{bundle} has digest {opened.digest}, asked for was {digest}")
    where = f"{bundle}: {opened.manifest.function.file}"
    weights = [placed.spec for placed in opened.layout.tensors]
    exported = function.read_function(opened.function_bytes(), where=where)
    function.check_exported(exported, opened.manifest, weights, where=where)
    if runtime.backend not in opened.manifest.function.platforms:
        raise BundleError(
            "BundleInvalid",
            f"{where}: exported for {', '.join(opened.manifest.function.platforms)}; this worker runs {runtime.backend}: "
            "export the function again with this platform",
        )
    zeros = Zeros(device)
    for index, dimensions in enumerate(programs):
        key = Key(digest, dimensions, runtime)
        if executables.get(key) is not None:
            continue
        name = program_name(dict(dimensions))
        inputs = [port.concrete(dict(dimensions)) for port in opened.manifest.inputs]
        try:
            run = compile_and_run(
                exported,
                [*weights, *inputs],
                weights=len(weights),
                zeros=zeros,
                device=device,
                memory_bytes=memory_bytes,
                progress=lambda verb, name=name, index=index: emit(  # type: ignore[misc]
                    event="progress", text=f"{verb} program {name} ({index + 1} of {len(programs)})"
                ),
            )
        except ProgramTooLargeError as error:
            raise ProgramTooLargeError(f"program {name} of {bundle}: {error}") from error
        measured = Measured(run.scratch_bytes, run.io_bytes, run.code_bytes, run.seconds, context())
        executables.put(key, run.data, measured)
        emit(event="built", dimensions=dimensions)
