# SPDX-License-Identifier: Apache-2.0
"""The workers that turn the queue: each takes a due key and reconciles it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ballast_operator.cluster import errors
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.queue import WorkQueue

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """What is reconciled: `model` or `budget`, and its name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class Retry(Exception):  # noqa: N818 - it is no error
    """The reconciliation cannot go on now; try again after so many seconds."""

    def __init__(self, message: str, *, after: float) -> None:
        super().__init__(message)
        self.after = after


Reconcile = Callable[[Key], Awaitable[float | None]]
"""Reconciles one key; returns the seconds after which it wants to be called again without an event."""


def earliest(*timers: float | None) -> float | None:
    """The least of some delays, of which None is never."""
    return min((timer for timer in timers if timer is not None), default=None)


class Dispatcher:
    """Turns a work queue with a number of workers on the running loop."""

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        metrics: ClusterMetrics,
        workers: int = 32,
        spacing: Callable[[Key], float] = lambda _: 0.0,
        lane: Callable[[Key], int] = lambda _: 0,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reconcile = reconcile
        self._clock = clock
        self._metrics = metrics
        self._workers = workers
        self._woken = asyncio.Event()
        self.queue: WorkQueue[Key] = WorkQueue(
            clock=clock,
            rng=rng or random.Random(),  # noqa: S311 - jitter
            spacing=spacing,
            lane=lane,
        )
        self.queue.wakeup = self._woken.set
        metrics.queue_depth.set_function(self.queue.depth)
        self._started: dict[Key, float] = {}

    def longest_run(self) -> float:
        """Seconds for which the oldest reconciliation in flight has been running; 0 when none is. Any thread may ask."""
        now = self._clock()
        return now - min(self._started.values(), default=now)

    async def run(self) -> None:
        """Turn the queue until cancelled."""
        idle = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as running:
            while True:
                await idle.acquire()
                key = await self._next()
                task = running.create_task(self._one(key), name=str(key))
                task.add_done_callback(lambda _: idle.release())

    async def _next(self) -> Key:
        while True:
            self._woken.clear()
            key = self.queue.take()
            if key is not None:
                return key
            due = self.queue.next_due()
            wait = None if due is None else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation in Python 3.11
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _one(self, key: Key) -> None:
        started = self._started[key] = self._clock()
        result = "ok"
        try:
            again = await self._reconcile(key)
        except asyncio.CancelledError:
            raise
        except Retry as retry:
            result = "retry"
            self.queue.failed(key, retry_after=retry.after)
            logger.info("%s: %s; again in %.0f s", key, retry, retry.after)
        except errors.Conflict as error:
            result = "conflict"  # somebody was faster: look again
            self.queue.failed(key)
            logger.info("%s: %s", key, error)
        except errors.ApiError as error:
            result = "error"
            delay = self.queue.failed(key, retry_after=error.retry_after)
            logger.warning("%s: %s; again in %.1f s", key, error, delay)
        except Exception:
            result = "bug"
            delay = self.queue.failed(key)
            logger.exception("%s: reconciliation failed unexpectedly; again in %.1f s", key, delay)
        else:
            self.queue.done(key, requeue_after=again)
        finally:
            del self._started[key]
            if result != "ok":
                self._metrics.queue_retries.labels(key.kind).inc()
            self._metrics.reconcile_seconds.labels(key.kind, result).observe(self._clock() - started)
