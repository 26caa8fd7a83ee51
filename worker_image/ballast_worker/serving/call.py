# SPDX-License-Identifier: Apache-2.0
"""The seam between the protocols and the device thread: one request on its way through the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ballast_worker.build.builder import BuiltProgram
from ballast_worker.bundle.manifest import Manifest
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import ResidentModel

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

Outcome = Sequence[Array] | Refusal
"""Outputs in manifest order, or why there are none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked against the manifest, ready to be executed.

    Attributes:
        model: its name.
        inputs: one array per input of the manifest, in that order, with the dtype of the manifest, row-major.
        dimensions: the value of each symbolic dimension, read off the inputs' shapes.
        deadline: on the monotonic clock, in seconds.
        done: called exactly once, on any thread; must not block.
    """

    model: str
    inputs: Sequence[Array]
    dimensions: Mapping[str, int]
    deadline: float
    done: Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A model whose executables are built: what the device thread needs to serve it.

    Attributes:
        resident: what residency needs.
        manifest: inputs, outputs, dimensions.
        programs: what is in the executable store, every one loadable.
        max_batch: rows in one execution at most, from the spec; 0: the largest compiled.
        max_delay_seconds: how long rows may wait for company while the device is busy.
    """

    resident: ResidentModel
    manifest: Manifest
    programs: tuple[BuiltProgram, ...]
    max_batch: int
    max_delay_seconds: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What one model has done since the process started. Seconds are of executions only."""

    requests: int
    rows: int
    dispatches: int
    compute_seconds: float
    queued: int
    queue_wait_p50: float
    queue_wait_p99: float


class Engine(Protocol):
    """The device thread and its queues."""

    def submit(self, call: Call) -> None:
        """Queue a call. Any thread; never blocks. Refusals come through `call.done`."""
        ...

    def post(self, action: Callable[[], None]) -> None:
        """Run something on the device thread, soon, in order of posting. Any thread."""
        ...

    def add(self, model: ServableModel, done: Callable[[Refusal | None], None]) -> None:
        """Serve a model, or serve it with other programs or another wish. Executables are loaded off the device
        thread; `done` is called on the device thread. Any thread.
        """
        ...

    def remove(self, name: str, done: Callable[[], None]) -> None:
        """Serve it no longer: waiting calls are refused, running ones end. Any thread."""
        ...

    def loads(self) -> Mapping[str, ModelLoad]:
        """A consistent snapshot per model. Any thread."""
        ...

    def stop(self) -> None:
        """Admit nothing new, refuse what waits, end the thread."""
        ...
