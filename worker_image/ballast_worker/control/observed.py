# SPDX-License-Identifier: Apache-2.0
"""An engine whose calls are counted and timed on their way through: what request metrics are made from."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import Call, Engine, ModelLoad, Outcome, ServableModel

BOUNDS: Final = tuple(0.001 * 2**k for k in range(14))
"""Upper bounds of the latency histogram, in seconds."""


@dataclass(slots=True)
class Requests:
    """What became of one model's calls.

    Attributes:
        statuses: `ok` or a reason, to the number of calls.
        buckets: calls answered within each bound, not cumulative; the last counts what took longer.
        seconds: of all calls, from submission to answer.
    """

    statuses: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0


class ObservedEngine:
    """Implements `serving.call.Engine` by passing everything on."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock = engine, clock
        self._lock = threading.Lock()
        self._requests: dict[str, Requests] = {}
        self._inflight = 0

    def submit(self, call: Call) -> None:
        """See `Engine.submit`."""
        began, done = self._clock(), call.done

        def observe(outcome: Outcome) -> None:
            self._ended(call.model, outcome, self._clock() - began)
            done(outcome)

        with self._lock:
            self._inflight += 1
        self._engine.submit(Call(call.model, call.inputs, call.dimensions, call.deadline, observe))

    def post(self, action: Callable[[], None]) -> None:
        """See `Engine.post`."""
        self._engine.post(action)

    def add(self, model: ServableModel, done: Callable[[Refusal | None], None]) -> None:
        """See `Engine.add`."""
        self._engine.add(model, done)

    def remove(self, name: str, done: Callable[[], None]) -> None:
        """See `Engine.remove`."""
        self._engine.remove(name, done)

    def loads(self) -> Mapping[str, ModelLoad]:
        """See `Engine.loads`."""
        return self._engine.loads()

    def stop(self) -> None:
        """See `Engine.stop`."""
        self._engine.stop()

    def requests(self) -> tuple[dict[str, Requests], int]:
        """A copy of what became of the calls of each model, and how many are under way."""
        with self._lock:
            copies = {
                name: Requests(dict(r.statuses), list(r.buckets), r.seconds) for name, r in self._requests.items()
            }
            return copies, self._inflight

    def _ended(self, model: str, outcome: Outcome, seconds: float) -> None:
        status = outcome.reason.value if isinstance(outcome, Refusal) else "ok"
        with self._lock:
            self._inflight -= 1
            requests = self._requests.get(model)
            if requests is None:
                requests = self._requests[model] = Requests()
            requests.statuses[status] = requests.statuses.get(status, 0) + 1
            requests.buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
            requests.seconds += seconds
