# SPDX-License-Identifier: Apache-2.0
"""One story told of a cluster in memory, step by step and without a wait."""

from __future__ import annotations

import asyncio
from typing import Any

from helpers.memory_cluster import BUDGET, NAMESPACE, Cluster, Leader
from helpers.virtual_time import VirtualLoop

from ballast_operator.cluster.resources import BUDGETS, MODELS, Resource


class Scene:
    """A cluster with a leader on a loop of its own, for tests that tell one story: each call lets its time pass."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.cluster = Cluster(self.loop)
        self.api = self.cluster.api
        self._running = self.loop.create_task(self.cluster.run())

    def passes(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def leads(self) -> None:
        """A leader begins, after the end of the one before."""

        async def change() -> None:
            if self.cluster.leader is not None:
                await self.cluster.leader.die()
            self.cluster.leader = Leader(self.cluster, next(self.cluster.epochs))
            await asyncio.sleep(20)

        self.loop.run_until_complete(change())

    def budget(self, *, replicas: int = 1, **spec: Any) -> None:
        workers = {"replicas": replicas, "backend": "cpu"}
        whole = {"workers": workers, "modelStores": [], "host": {"budget": "0"}, **spec}
        self._put(BUDGETS, BUDGET, whole)

    def model(self, name: str, *, uri: str = "", paused: bool = False, **spec: Any) -> None:
        metadata = {"annotations": {"ballast.dev/paused": "true"}} if paused else {}
        source = {"uri": uri or f"file:///models/{name}"}
        self._put(MODELS, name, {"budgetRef": {"name": BUDGET}, "source": source, "replicas": 1, **spec}, **metadata)

    def annotate(self, resource: Resource, name: str, **annotations: str) -> None:
        keyed = {f"ballast.dev/{key}": value for key, value in annotations.items()}
        self._put(resource, name, self.get(resource, name)["spec"], annotations=keyed)

    def get(self, resource: Resource, name: str) -> dict[str, Any]:
        found = self.api.find(resource, NAMESPACE, name)
        assert found is not None, name
        return found

    def said(self, resource: Resource, name: str, type_: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        for condition in self.get(resource, name).get("status", {}).get("conditions", ()):
            if condition["type"] == type_:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def runs(self, key: str) -> int:
        """Reconciliations of this leader so far."""
        assert self.cluster.leader is not None
        return self.cluster.leader.runs[key]

    def end(self) -> None:
        async def stop() -> None:
            if self.cluster.leader is not None:
                await self.cluster.leader.die()
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

        self.loop.run_until_complete(stop())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _put(self, resource: Resource, name: str, spec: Any, **metadata: Any) -> None:
        async def put() -> None:
            self.api.put(resource, {"metadata": {"namespace": NAMESPACE, "name": name, **metadata}, "spec": spec})

        self.loop.run_until_complete(put())
