# SPDX-License-Identifier: Apache-2.0
"""The token bucket for writes."""

from __future__ import annotations

import asyncio

from ballast_operator.cluster.limiter import Priority, TokenBucket


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def bucket(time: Time, *, rate: float = 10, burst: int = 2) -> TokenBucket:
    return TokenBucket(rate=rate, burst=burst, clock=lambda: time.now, sleep=time.sleep)


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate():
    time = Time()
    limiter = bucket(time)
    for _ in range(6):
        await limiter.acquire()
    assert round(time.now, 6) == 0.4


async def test_the_more_urgent_caller_goes_first():
    time = Time()
    limiter = bucket(time, burst=1)
    await limiter.acquire()
    order: list[str] = []

    async def caller(name: str, priority: Priority) -> None:
        await limiter.acquire(priority)
        order.append(name)

    waiting = [
        asyncio.create_task(caller(name, priority))
        for name, priority in (
            ("figures", Priority.FIGURES),
            ("ready", Priority.READY),
            ("normal", Priority.NORMAL),
            ("fencing", Priority.FENCING),
            ("ready too", Priority.READY),
        )
    ]
    await asyncio.gather(*waiting)
    assert order == ["fencing", "ready", "ready too", "normal", "figures"]


async def test_a_cancelled_caller_takes_no_token():
    time = Time()
    limiter = bucket(time, burst=1)
    await limiter.acquire()
    gone = asyncio.create_task(limiter.acquire(Priority.FENCING))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await limiter.acquire()
    assert round(time.now, 6) == 0.1


async def test_only_the_most_urgent_go_while_the_bucket_is_held():
    time, held = Time(), True
    limiter = TokenBucket(rate=10, burst=9, clock=lambda: time.now, sleep=time.sleep, held=lambda: held)
    await limiter.acquire(Priority.FENCING)
    order: list[str] = []

    async def caller(name: str, priority: Priority) -> None:
        await limiter.acquire(priority)
        order.append(name)

    waiting = [
        asyncio.create_task(caller(name, priority))
        for name, priority in (("figures", Priority.FIGURES), ("ready", Priority.READY), ("fencing", Priority.FENCING))
    ]
    while len(time.slept) < 5:  # noqa: ASYNC110 - sleeping is what is counted
        await asyncio.sleep(0)
    assert order == ["fencing"]
    held = False
    await asyncio.gather(*waiting)
    assert order == ["fencing", "ready", "figures"]
