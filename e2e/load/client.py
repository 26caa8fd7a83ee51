# SPDX-License-Identifier: Apache-2.0
"""The open loop: every target is called at its own rate, and each call is measured from when it was due."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from e2e.load.calls import Caller, CallError, GrpcCaller, HttpCaller, Lost, Target

DEADLINE_SECONDS = 60.0
"""After it a call that was not answered has failed."""

_ROW = (1.0, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class Stream:
    """Calls of one model by one way in.

    Attributes:
        target: whom.
        protocol: http or grpc.
        factor: by which the model multiplies its row.
    """

    target: Target
    protocol: str
    factor: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One call. Times are monotonic seconds.

    Attributes:
        stream: of the call.
        phase: in which it was due.
        due: when it was to leave.
        ended: when the answer was there, or the call had failed.
        failure: what went wrong; empty for a right answer.
        lost: it was sent, and its connection broke before the answer.
    """

    stream: Stream
    phase: str
    due: float
    ended: float
    failure: str = ""
    lost: bool = False


class Client:
    """Traffic from a thread of its own, from `with` to its end. Seeded: two runs call in the same order."""

    def __init__(self, streams: Sequence[Stream], *, rates: Mapping[str, float], phase: str, seed: int = 0) -> None:
        """Make one.

        Args:
            streams: what is called; those of one model share its rate.
            rates: calls a second of each model, by name.
            phase: the name of the first phase.
            seed: of the pauses between calls, which are exponential.
        """
        self.samples: list[Sample] = []
        self.phase = phase
        self.rates = rates
        self._streams = streams
        self._seed = seed
        self._ways = {model: sum(s.target.model == model for s in streams) for model in rates}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    async def _main(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, stream in enumerate(self._streams):
                group.create_task(self._drive(stream, random.Random(self._seed * 100_003 + number)))  # noqa: S311

    async def _drive(self, stream: Stream, rng: random.Random) -> None:
        caller: Caller = HttpCaller(stream.target) if stream.protocol == "http" else GrpcCaller(stream.target)
        model = stream.target.model
        due = time.monotonic()
        async with asyncio.TaskGroup() as calls:
            while not self._ending.is_set():
                due += rng.expovariate(self.rates[model] / self._ways[model])
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                calls.create_task(self._call(caller, stream, self.phase, due))
        await caller.close()

    async def _call(self, caller: Caller, stream: Stream, phase: str, due: float) -> None:
        failure, lost = "", False
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                answer = await caller.call(_ROW)
            if not all(math.isclose(y, x * stream.factor) for x, y in zip(_ROW, answer, strict=True)):
                failure = f"a wrong answer: {answer}"
        except CallError as error:
            failure, lost = str(error), isinstance(error, Lost)
        except TimeoutError:
            failure = f"no answer within {DEADLINE_SECONDS:.0f} s"
        self.samples.append(Sample(stream, phase, due, time.monotonic(), failure, lost))


def summary(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Figures of each phase, in order: calls, failures, and latency from when calls were due, in milliseconds."""
    found: dict[str, dict[str, float]] = {}
    for phase in dict.fromkeys(sample.phase for sample in sorted(samples, key=lambda s: s.due)):
        mine = [sample for sample in samples if sample.phase == phase]
        took = sorted(1000 * (sample.ended - sample.due) for sample in mine if not sample.failure)
        found[phase] = {"calls": len(mine), "failed": sum(bool(sample.failure) for sample in mine)}
        if took:
            quantiles = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
            found[phase] |= {name: round(took[math.ceil(q * len(took)) - 1], 1) for name, q in quantiles.items()}
    return found
