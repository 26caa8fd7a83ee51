# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher says of itself to other threads: its metrics and its health are asked for by HTTP."""

from __future__ import annotations

import asyncio
import threading
import time

from prometheus_client import CollectorRegistry

from ballast_operator.cluster.dispatch import Dispatcher, Key
from ballast_operator.cluster.metrics import ClusterMetrics

KEY = Key("budget", "ns", "default")


async def test_the_longest_run_is_told_while_that_run_ends():
    asked, ended, go = threading.Event(), threading.Event(), asyncio.Event()
    begun = asyncio.Event()
    loop_thread = threading.get_ident()

    def clock() -> float:
        if threading.get_ident() != loop_thread:
            asked.set()
            assert ended.wait(10)
        return time.monotonic()

    async def reconcile(_: Key) -> None:
        begun.set()
        await go.wait()

    dispatcher = Dispatcher(reconcile, metrics=ClusterMetrics(CollectorRegistry()), clock=clock)
    dispatcher.queue.add(KEY)
    running = asyncio.create_task(dispatcher.run())
    await begun.wait()
    telling = asyncio.create_task(asyncio.to_thread(dispatcher.longest_run))
    await asyncio.to_thread(asked.wait, 10)
    go.set()
    while any(entry.running for entry in dispatcher.queue._entries.values()):  # noqa: ASYNC110 - no event says that the queue has let go of the key
        await asyncio.sleep(0)
    ended.set()
    assert await telling >= 0.0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
