# SPDX-License-Identifier: Apache-2.0
"""The closed loop: so many workers, each of which asks again when it has its answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.requests.models import questions, right
from benchmarks.requests.server import Server
from benchmarks.requests.wires import Call, Wire
from benchmarks.summary import quantile
from e2e.load.calls import CallError

CHECKED: Final = 16
"""One answer in so many is compared with the right one."""

_PATIENCE: Final = 60.0


class WrongAnswerError(Exception):
    """A server does not do what is measured."""


@dataclass(slots=True)
class Tally:
    """What workers have seen: seconds of every request that was answered, and how many were not, or wrongly."""

    latencies: list[float] = field(default_factory=list)
    errors: int = 0


class Asker:
    """All questions over one wire, as bytes."""

    def __init__(self, wire: Wire) -> None:
        asked = questions()
        self.wire = wire
        self._requests = [wire.request(name, row) for name, row, _ in asked]
        self._expected = [expected for _, _, expected in asked]

    async def point(
        self, server: Server, workers: int, *, warm_up: float, seconds: float
    ) -> tuple[dict[str, float], int]:
        """Ask for so long after a warm-up; the figures, and the count of errors.

        Raises:
            WrongAnswerError: an answer before the loop was wrong, or none.
        """
        async with self.wire.connect(server.said[self.wire.port], workers) as calls:
            await self._check_all(calls)
            await self._loop(calls, warm_up)
            cpu, own, began = server.cpu_seconds(), time.process_time(), time.perf_counter()
            tally = await self._loop(calls, seconds)
            passed = time.perf_counter() - began
            own, cpu = time.process_time() - own, server.cpu_seconds() - cpu
        count = len(tally.latencies)
        return {
            "requests_per_second": count / passed,
            "p50_milliseconds": 1e3 * median(tally.latencies),
            "p99_milliseconds": 1e3 * quantile(tally.latencies, 0.99),
            "server_cpu_microseconds_per_request": 1e6 * cpu / count,
            "generator_cpu_share": own / passed,
        }, tally.errors

    async def _check_all(self, calls: list[Call]) -> None:
        for index, request in enumerate(self._requests):
            try:
                async with asyncio.timeout(_PATIENCE):
                    body = await calls[index % len(calls)](request)
            except (CallError, TimeoutError) as error:
                raise WrongAnswerError(f"{type(self.wire).__name__}: no answer: {error}") from error
            if not self._right(index, body):
                raise WrongAnswerError(f"{type(self.wire).__name__}: a wrong answer to question {index}")

    def _right(self, index: int, body: bytes) -> bool:
        return right(self.wire.answer(body), self._expected[index])

    async def _loop(self, calls: list[Call], seconds: float) -> Tally:
        tally = Tally()
        until = time.perf_counter() + seconds
        async with asyncio.timeout(seconds + _PATIENCE), asyncio.TaskGroup() as group:
            for number, call in enumerate(calls):
                group.create_task(self._work(call, number * len(self._requests) // len(calls), until, tally))
        return tally

    async def _work(self, call: Call, first: int, until: float, tally: Tally) -> None:
        """Ask until then, and once at least."""
        index = first
        began = time.perf_counter()
        while True:
            try:
                body = await call(self._requests[index])
            except CallError:
                tally.errors += 1
            else:
                ended = time.perf_counter()
                tally.latencies.append(ended - began)
                if len(tally.latencies) % CHECKED == 0:
                    tally.errors += not self._right(index, body)
            index = (index + 1) % len(self._requests)
            if (began := time.perf_counter()) >= until:
                return
