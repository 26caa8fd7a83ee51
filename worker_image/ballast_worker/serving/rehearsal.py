# SPDX-License-Identifier: Apache-2.0
"""Every program is run once in the final pool before anything is served: what fails then is one model's refusal, not a
request's error.

It runs on weights that are zero, which the builder has tried as well, in an extent of its own that is gone afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import jax

from ballast_contract.reasons import Reason
from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.layout import Layout, TensorSpec, pack
from ballast_worker.device.memory import DeviceMemory, NotPlaceableError
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import ServableModel
from ballast_worker.serving.executable import LoadedProgram, ProgramUnusableError, device_works
from ballast_worker.serving.journal import Journal
from ballast_worker.serving.served import load_version

_log = logging.getLogger(__name__)

_KEY: Final = "rehearsal"
_ZEROS: Final = bytes(1 << 20)


@dataclass(slots=True)
class Rehearsed:
    """How it went.

    Attributes:
        programs: loaded and run, by digest of their file.
        refused: models that cannot be served, and why.
    """

    programs: dict[str, LoadedProgram] = field(default_factory=dict)
    refused: list[tuple[ServableModel, Refusal]] = field(default_factory=list)


def rehearse(
    models: Iterable[ServableModel],
    *,
    device: jax.Device,
    memory: DeviceMemory,
    journal: Journal,
    fatal: Callable[[str], None],
) -> Rehearsed:
    """Load and run the programs of models one after the other. Nothing else uses the device or the memory meanwhile.

    Args:
        models: in which order.
        device: where executables are loaded.
        memory: has room for any one of them.
        journal: told before and after each run.
        fatal: called when the device takes no more work.
    """
    done = Rehearsed()
    for model in models:
        try:
            version = load_version(model, device, done.programs)
        except ProgramUnusableError as error:
            done.refused.append((model, error.refusal))
            continue
        refusal = _run(model, version.files, device=device, memory=memory, journal=journal, fatal=fatal)
        if refusal is None:
            done.programs.update(version.files)
        else:
            done.refused.append((model, refusal))
    return done


def _run(
    model: ServableModel,
    programs: Mapping[str, LoadedProgram],
    *,
    device: jax.Device,
    memory: DeviceMemory,
    journal: Journal,
    fatal: Callable[[str], None],
) -> Refusal | None:
    tensors = model.resident.bundle.layout.tensors
    # Tensors of one type share their zeros, so that a model of many equal layers takes little more than one of them.
    types = {
        (placed.spec.dtype, placed.spec.shape): TensorSpec(placed.spec.name, *_type(placed.spec)) for placed in tensors
    }
    layout = pack(list(types.values()))
    try:
        memory.place(_KEY, layout)
    except NotPlaceableError:
        return None  # its weights do not fit at all, which admission tells
    memory.fill(_KEY, _zeros(layout))
    memory.activate(_KEY)
    lease = memory.lease(_KEY)
    try:
        zeros = dict(zip(types, lease.arrays, strict=True))
        weights = [zeros[_type(placed.spec)] for placed in tensors]
        for program in model.programs:
            journal.begin(model.resident.name, program.dimensions)
            try:
                programs[program.digest].run_on_zeros(weights)
            except RuntimeError as error:
                which = f"program {program_name(dict(program.dimensions))} of model '{model.resident.name}'"
                _log.error("%s failed in its trial run", which, exc_info=error)
                if not device_works(device):
                    fatal(f"the device takes no more work after {which}: {error}")
                return Refusal(
                    Reason.LOAD_FAILED_PERMANENT, f"{which} failed in its trial run in the final pool: {error}"
                )
            finally:
                journal.end(model.resident.name, program.dimensions)
    finally:
        zeros, weights = {}, []
        lease.release()
        memory.release(_KEY)
    return None


def _type(spec: TensorSpec) -> tuple[str, tuple[int, ...]]:
    return spec.dtype, spec.shape


def _zeros(layout: Layout) -> Iterator[Chunk]:
    view = memoryview(_ZEROS)
    for offset in range(0, layout.nbytes, len(view)):
        yield Chunk(offset, view[: layout.nbytes - offset])
