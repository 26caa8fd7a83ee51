# SPDX-License-Identifier: Apache-2.0
"""Real lists of every watched kind: at the start, now and then, and after a watch has begun anew."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import WATCHED, Resource, selector_of
from ballast_operator.reconcile.world import World

logger = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 300.0
_SETTLE_SECONDS: Final = 5.0
_SUSPICION_SECONDS: Final = 60.0
"""How soon a list is repeated that showed what the watch had not told."""

_DEAF_SWEEPS: Final = 3
"""Lists in a row that showed changes while the watch told of none: it will tell of none any more."""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._client = client
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._metrics = metrics
        self._period = period
        self._clock = clock
        self._due: dict[Resource, float] = {}
        self._untold: dict[Resource, int] = {}
        """Lists in a row that showed changes, since the watch of the kind last told of anything."""
        self._poke = asyncio.Event()

    async def fill(self) -> None:
        """List everything once; afterwards the caches may be believed. Raises ApiError."""
        for resource in WATCHED:
            await self._sweep(resource)
            self._due[resource] = self._next()

    def told(self, resource: Resource, type_: str | None) -> None:
        """A watch has told something. None: it has begun anew, so look soon for what vanished meanwhile."""
        self._untold.pop(resource, None)
        if type_ is None:
            self._look(resource, _SETTLE_SECONDS)

    def deaf(self) -> list[str]:
        """Watches that tell nothing of what lists show, in words. Any thread may ask."""
        return [
            f"the watch of {resource.plural} told nothing of what {count} lists in a row showed to have changed"
            for resource, count in list(self._untold.items())
            if count >= _DEAF_SWEEPS
        ]

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            self._poke.clear()
            wait = max(0.0, min(self._due.values()) - self._clock())
            try:
                async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation in Python 3.11
                    await self._poke.wait()
                continue
            except TimeoutError:
                pass
            for resource in [r for r, due in self._due.items() if due <= self._clock()]:
                await self.sweep(resource)

    async def sweep(self, resource: Resource) -> None:
        """List a kind now; a list that fails is tried again at its next turn."""
        self._due[resource] = self._next()
        try:
            corrected = await self._sweep(resource)
        except errors.ApiError as error:
            logger.warning("%s could not be listed: %s", resource.plural, error)
            return
        if corrected:
            self._metrics.swept.labels(resource.plural).inc(corrected)
            self._untold[resource] = self._untold.get(resource, 0) + 1
            self._look(resource, _SUSPICION_SECONDS)

    async def _sweep(self, resource: Resource) -> int:
        corrected = 0
        for namespace in self._namespaces:
            listing = await self._client.list(resource, namespace, labels=selector_of(resource))
            corrected += self._world.sweep(resource, listing, namespace=namespace)
        self._metrics.cached.labels(resource.plural).set(len(self._world.caches[resource]))
        return corrected

    def _look(self, resource: Resource, seconds: float) -> None:
        self._due[resource] = min(self._due.get(resource, float("inf")), self._clock() + seconds)
        self._poke.set()

    def _next(self) -> float:
        return self._clock() + self._period * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
