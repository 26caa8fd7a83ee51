# SPDX-License-Identifier: Apache-2.0
"""The interface of building: what is asked of the builder process and what it found by compiling and running."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ballast_contract.reasons import Reason

CONTEXT_ALLOWANCE: Final = 768 << 20
"""Of a builder's device memory, what is left for driver context and libraries, which no allocator's limit counts."""

TUNING_ALLOWANCE: Final = 256 << 20
"""Of a builder's device memory, what trying out kernels may take beside weights, inputs and outputs: a rule of thumb."""

Dimensions = tuple[tuple[str, int], ...]
"""Concrete values of every symbolic dimension, sorted by name: the identity of a program within its bundle."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One bundle to be compiled for one kind of device.

    Attributes:
        bundle: the bundle's directory.
        digest: of the bundle, as the caller opened it; the builder refuses other bytes.
        programs: which programs; all of them are built or none.
        backend: cpu or cuda.
        ordinal: of the device.
        memory_bytes: device memory that the builder may take in all (the slack, or the budget before serving).
        timeout_seconds: after this it is killed and the build has failed.
    """

    bundle: Path
    digest: str
    programs: tuple[Dimensions, ...]
    backend: str
    ordinal: int
    memory_bytes: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """An executable in the store, and what one run of it on zero weights showed.

    Attributes:
        dimensions: which program.
        file: the serialised executable.
        digest: sha256:HEX of the file, checked before it is loaded.
        scratch_bytes: device memory beyond weights, inputs and outputs that a run takes; checked by a run where the
            backend can tell, else the compiler's figure.
        io_bytes: inputs and outputs of one run.
        code_bytes: of the executable on the device: its serialised size on cuda, where the runtime does not tell; 0 on
            cpu, where code is host memory.
        run_seconds: of the second run.
    """

    dimensions: Dimensions
    file: Path
    digest: str
    scratch_bytes: int
    io_bytes: int
    code_bytes: int
    run_seconds: float


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Why a bundle could not be built. The model is refused alone; everything else serves on.

    Attributes:
        reason: that of the bundle's own fault (BundleInvalid, SourceNotFound, SourceChanged), LoadFailedPermanent,
            LoadFailedWillRetry when the store cannot be written, InsufficientDeviceMemory, or Draining after `close`.
        message: what, value, limit, remedy; with the last lines of the builder's output for a crash.
        exit_code: of the process; negative for a signal; None when it ended by itself in order.
    """

    reason: Reason
    message: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Either every program asked for, or a failure.

    Attributes:
        programs: in the order asked for.
        compiled: how many were compiled now; the rest came from the store.
        context_bytes: device memory the driver took for context and libraries, measured in the builder; 0 on cpu.
        failure: set when programs is empty.
    """

    programs: tuple[BuiltProgram, ...]
    compiled: int
    context_bytes: int
    failure: BuildFailure | None = None


class Builder(Protocol):
    """Builds bundles. Safe from any thread; concurrency is bounded by the implementation."""

    def build(self, request: BuildRequest, *, progress: Callable[[str], None]) -> BuildResult:
        """Compile, run once, measure and store, in a process of its own; blocks until the end.

        Programs that the store already has for this digest, device kind and runtime are not built again. `progress` is
        called with a sentence about what is being done, from any thread. Never raises for a bad bundle.
        """
        ...

    def tend(self, used: Iterable[BuiltProgram]) -> None:
        """Remove from the store what nobody used for long; `used` is in use now. Blocks on the file system; never raises."""
        ...

    def close(self) -> None:
        """Kill what still runs."""
        ...
