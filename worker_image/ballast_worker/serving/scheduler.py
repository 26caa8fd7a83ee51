# SPDX-License-Identifier: Apache-2.0
"""Which model is next: fair by seconds of the device. Pure; time is passed in.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over models: every model has a virtual time that grows by the
seconds its executions take, the model with the smallest one is next, and the one that waits longest when two are equal.
A model that comes to the queue, or back from a load, starts at the virtual time of the model served last: it gains
nothing by having been idle, and after its load it is next. With n models waiting, each is served after at most one
execution of every other.
"""

from __future__ import annotations

from ballast_worker.serving.queues import Batch, ModelQueue


class Scheduler:
    """The models that could be executed now: their weights are on the device, as far as is known, and calls wait."""

    def __init__(self) -> None:
        self._candidates: dict[str, ModelQueue] = {}
        self._virtual = 0.0

    def __contains__(self, model: str) -> bool:
        return model in self._candidates

    def enter(self, model: str, queue: ModelQueue) -> None:
        """A model has calls and its weights; nothing changes when that was known."""
        if model not in self._candidates:
            queue.virtual = max(queue.virtual, self._virtual)
            self._candidates[model] = queue

    def leave(self, model: str) -> None:
        """It has no calls, or no weights."""
        self._candidates.pop(model, None)

    def next(self, now: float, *, busy: bool) -> str | None:
        """The model to execute now, or None. Linear in the models that could be executed.

        Args:
            now: monotonic seconds.
            busy: something executes, so that a batch may still wait for company.
        """
        ripe = {model: queue for model, queue in self._candidates.items() if not queue.max_delay or queue.ripe(now)}
        candidates = ripe if ripe or busy else self._candidates
        return min(candidates, key=lambda model: _key(candidates[model]), default=None)

    def take(self, model: str) -> Batch:
        """Take the next batch of a model that `next` named, and charge it what the program is expected to take."""
        queue = self._candidates[model]
        batch = queue.take()
        self._virtual = max(self._virtual, queue.virtual)
        queue.virtual += batch.program.seconds
        if not queue:
            self.leave(model)
        return batch


def _key(queue: ModelQueue) -> tuple[float, int]:
    front = queue.oldest()
    return queue.virtual, front.sequence if front is not None else 0
