# SPDX-License-Identifier: Apache-2.0
"""The device thread: it takes calls from the queues, executes them, and runs what residency has to decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax

from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import Residency
from ballast_worker.serving.call import Call, ModelLoad, ServableModel
from ballast_worker.serving.journal import Journal, NoJournal


class DeviceEngine:
    """Implements `call.Engine`, and residency's `Demand` and `Listener`.

    Order of construction: the engine, then residency with the engine as demand and listener (and `post` to come back to
    the device thread), then `start`.
    """

    def __init__(
        self,
        *,
        device: jax.Device,
        max_queue: int,
        depth: int = 1,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        device: where executables are loaded and inputs go.
        max_queue: requests waiting per model; one more is refused.
        depth: executions enqueued at once, as stated to the plan.
        journal: told before and after each dispatch.
        clock: monotonic seconds, the clock of `Call.deadline`.
        """
        self._journal = journal or NoJournal()

    def start(self, residency: Residency) -> None:
        """Begin to serve: starts the device thread. Once."""
        raise NotImplementedError

    def submit(self, call: Call) -> None:
        raise NotImplementedError

    def post(self, action: Callable[[], None]) -> None:
        raise NotImplementedError

    def add(self, model: ServableModel, done: Callable[[Refusal | None], None]) -> None:
        raise NotImplementedError

    def remove(self, name: str, done: Callable[[], None]) -> None:
        raise NotImplementedError

    def model(self, name: str) -> ServableModel | None:
        raise NotImplementedError

    def loads(self) -> Mapping[str, ModelLoad]:
        raise NotImplementedError

    def stop(self, *, drain_seconds: float) -> None:
        raise NotImplementedError

    # Demand
    def queued(self, model: str) -> int:
        raise NotImplementedError

    def executing(self, model: str) -> bool:
        raise NotImplementedError

    def deadline(self, model: str) -> float | None:
        raise NotImplementedError

    # Listener
    def loaded(self, model: str) -> None:
        raise NotImplementedError

    def refused(self, model: str, refusal: Refusal) -> None:
        raise NotImplementedError

    def changed(self, model: str) -> None:
        raise NotImplementedError
