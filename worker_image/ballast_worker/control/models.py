# SPDX-License-Identifier: Apache-2.0
"""How far each assigned model has come on this worker, as a value: what the control loop writes and everybody reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildFailure, BuiltProgram
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.serving.call import ServableModel

_PERMANENT: Final = frozenset(
    {Reason.BUNDLE_INVALID, Reason.LOAD_FAILED_PERMANENT, Reason.QUARANTINED, Reason.SCRATCH_EXCEEDS_POOL}
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model is not served, or not served as wished.

    Attributes:
        reason: from the closed list.
        message: what, value, limit, remedy.
        exit_code: of a builder that crashed; negative for a signal.
    """

    reason: Reason
    message: str
    exit_code: int | None = None

    @property
    def permanent(self) -> bool:
        """Only a change of the spec can help."""
        return self.reason in _PERMANENT

    @staticmethod
    def of(error: BundleError | BuildFailure | Refusal) -> Failure:
        """A failure in the words of whoever found it."""
        match error:
            case BundleError():
                return Failure(Reason(error.reason), str(error))
            case BuildFailure():
                return Failure(error.reason, error.message, error.exit_code)
            case Refusal():
                return Failure(error.reason, error.message)


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle whose executables are in the store, measured. Bytes of device memory.

    Attributes:
        bundle: the bundle.
        programs: all of them.
        context_bytes: driver context and libraries that running them took; 0 where that is not known.
    """

    bundle: Bundle
    programs: tuple[BuiltProgram, ...]
    context_bytes: int

    @property
    def scratch_bytes(self) -> int:
        """The most that one run takes beyond weights, inputs and outputs."""
        return max((program.scratch_bytes for program in self.programs), default=0)

    @property
    def io_bytes(self) -> int:
        """The most that inputs and outputs of one run take."""
        return max((program.io_bytes for program in self.programs), default=0)

    @property
    def code_bytes(self) -> int:
        """All executables together."""
        return sum(program.code_bytes for program in self.programs)

    def without(self, other: Built) -> Built:
        """The same less the executables that another build of the model has too: those are loaded once."""
        shared = {program.digest for program in other.programs}
        return replace(self, programs=tuple(program for program in self.programs if program.digest not in shared))


class Stage(Enum):
    """How far the spec of a model has come."""

    PENDING = "pending"
    """Nothing is done yet."""
    BUILDING = "building"
    """Its executables are being compiled, run once and measured."""
    BUILT = "built"
    """Its executables are in the store; it waits for the plan, or for the device thread to take it."""
    SERVED = "served"
    """The device thread has it: a call would be answered, after a load if need be."""
    REFUSED = "refused"
    """See failure. Bytes of an earlier spec may still serve."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One assigned model at one moment.

    Attributes:
        spec: what is wanted.
        stage: how far that has come.
        failure: why not, at stage REFUSED.
        message: progress in words.
        bundle: of the spec, once its headers were read.
        built: of the spec, once it is built.
        serving: what the device thread answers calls with; of an earlier spec while a new one is on its way.
    """

    spec: AssignedModel
    stage: Stage = Stage.PENDING
    failure: Failure | None = None
    message: str = ""
    bundle: Bundle | None = None
    built: Built | None = None
    serving: Built | None = None


def built_of_others(views: Mapping[str, ModelView], name: str) -> list[Built]:
    """What is loaded of other models, or will be: of one that is replaced, or was refused, also what serves still."""
    found = []
    for other, view in views.items():
        if other == name:
            continue
        built = view.built if view.stage is not Stage.REFUSED else None
        if built is not None:
            found.append(built)
        if view.serving is not None and view.serving is not built:
            found.append(view.serving if built is None else view.serving.without(built))
    return found


def servable(spec: AssignedModel, built: Built) -> ServableModel:
    """A built model in the words of the device thread."""
    return ServableModel(
        resident=ResidentModel(
            name=spec.name, bundle=built.bundle, wish=spec.residency, scratch_bytes=built.scratch_bytes
        ),
        manifest=built.bundle.manifest,
        programs=built.programs,
        max_batch=spec.max_batch,
        max_delay_seconds=spec.max_delay_milliseconds / 1000,
    )
