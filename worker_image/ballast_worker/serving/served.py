# SPDX-License-Identifier: Apache-2.0
"""A model as the device thread serves it: its executables, its queue, and the version that is about to replace it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from ballast_worker.build.builder import Dimensions
from ballast_worker.serving.call import Call, ServableModel
from ballast_worker.serving.executable import LoadedProgram, load
from ballast_worker.serving.programs import ProgramTable
from ballast_worker.serving.queues import ModelQueue
from ballast_worker.serving.signature import Signature


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One bundle under one name, its programs loaded.

    Attributes:
        programs: by dimensions.
        files: the same by digest of their file, so that a change of wish loads nothing again.
        output_axes: of each output, as in the manifest.
    """

    model: ServableModel
    signature: Signature
    programs: Mapping[Dimensions, LoadedProgram]
    files: Mapping[str, LoadedProgram]
    output_axes: tuple[tuple[int | str, ...], ...]

    @property
    def digest(self) -> str:
        """Of the bundle."""
        return self.model.resident.bundle.digest

    @property
    def batched(self) -> bool:
        """Calls may run together, along the first axis."""
        return self.model.manifest.batch_dimension is not None

    def queue(self, limit: int) -> ModelQueue:
        """An empty queue for it."""
        model = self.model
        table = ProgramTable(model.programs, model.manifest.batch_dimension, model.max_batch)
        return ModelQueue(table, limit, model.max_delay_seconds)

    def accepts(self, call: Call) -> bool:
        """Whether a call was made for inputs like these."""
        return self.signature.accepts(call.inputs, call.dimensions)


def load_version(model: ServableModel, device: jax.Device, known: Mapping[str, LoadedProgram]) -> Version:
    """Load the executables of a model, except those in `known`, by digest. Takes milliseconds for each.

    Raises:
        ProgramUnusableError: one of them cannot be loaded.
    """
    inputs = len(model.manifest.inputs)
    files: dict[str, LoadedProgram] = {}
    for program in model.programs:
        files[program.digest] = known.get(program.digest) or load(program, device, inputs=inputs)
    return Version(
        model=model,
        signature=Signature(model.manifest),
        programs={program.dimensions: files[program.digest] for program in model.programs},
        files=files,
        output_axes=tuple(port.shape for port in model.manifest.outputs),
    )


@dataclass(slots=True, eq=False)
class Served:
    """A name that is served. Belongs to the device thread; others may read `current`.

    Attributes:
        current: the version whose bytes a lease gives.
        queue: of the calls, for the programs of `current`.
        pending: the version whose weights residency is bringing beside the current ones.
        loading_since: residency said then that its weights are loading; None when they are not.
    """

    current: Version
    queue: ModelQueue
    pending: Version | None = None
    loading_since: float | None = None
