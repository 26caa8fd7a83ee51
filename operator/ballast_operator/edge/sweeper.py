# SPDX-License-Identifier: Apache-2.0
"""Real lists of every watched kind: at the start, now and then, and after a watch has begun anew."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Final

from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import WATCHED, Resource, selector_of
from ballast_operator.reconcile.world import World

logger = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 300.0
_SETTLE_SECONDS: Final = 5.0


class Sweeper:
    """Keeps the caches honest: what a list does not show is gone, whatever the watch said or did not say."""

    def __init__(
        self,
        world: World,
        client: Client,
        namespaces: Sequence[str],
        metrics: ClusterMetrics,
        *,
        period: float = PERIOD_SECONDS,
    ) -> None:
        self._world = world
        self._client = client
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._metrics = metrics
        self._period = period
        self._due: dict[Resource, float] = {}
        self._poke = asyncio.Event()

    async def fill(self) -> None:
        """List everything once; afterwards the caches may be believed. Raises ApiError."""
        for resource in WATCHED:
            await self._sweep(resource)
            self._due[resource] = self._next()

    def relisted(self, resource: Resource) -> None:
        """The watch has begun anew: look soon for what vanished meanwhile."""
        self._due[resource] = min(self._due.get(resource, float("inf")), time.monotonic() + _SETTLE_SECONDS)
        self._poke.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            self._poke.clear()
            wait = max(0.0, min(self._due.values()) - time.monotonic())
            try:
                async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation in Python 3.11
                    await self._poke.wait()
                continue
            except TimeoutError:
                pass
            for resource in [r for r, due in self._due.items() if due <= time.monotonic()]:
                self._due[resource] = self._next()
                try:
                    corrected = await self._sweep(resource)
                except errors.ApiError as error:
                    logger.warning("%s could not be listed: %s", resource.plural, error)
                    continue
                if corrected:
                    self._metrics.swept.labels(resource.plural).inc(corrected)

    async def _sweep(self, resource: Resource) -> int:
        corrected = 0
        for namespace in self._namespaces:
            listing = await self._client.list(resource, namespace, labels=selector_of(resource))
            corrected += self._world.sweep(resource, listing, namespace=namespace)
        self._metrics.cached.labels(resource.plural).set(len(self._world.caches[resource]))
        return corrected

    def _next(self) -> float:
        return time.monotonic() + self._period * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
