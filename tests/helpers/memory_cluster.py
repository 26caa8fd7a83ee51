# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory: API server, kubelets, workers and at most one leader, which say what was claimed and was not so."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from helpers.memory_api import MemoryApi
from helpers.memory_worker import MemoryChannel, MemoryWorker
from helpers.virtual_time import VirtualLoop
from prometheus_client import CollectorRegistry

from ballast_operator.cluster.dispatch import Dispatcher, Key
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import BUDGETS, ENDPOINT_SLICES, MODELS, PODS, WATCHED, Resource
from ballast_operator.fleet.fleet import Fleet
from ballast_operator.reconcile.budget import BudgetReconciler
from ballast_operator.reconcile.events import Events
from ballast_operator.reconcile.metrics import ReconcileMetrics
from ballast_operator.reconcile.model import ModelReconciler
from ballast_operator.reconcile.options import Options
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.world import World

NAMESPACE = "ns"
BUDGET = "default"

LIVE_LIMIT = 10.0
"""Seconds for which a status may claim what ended, while somebody leads."""

RETRY_SECONDS = 2.0
"""What calls that the API server refused meanwhile may add: a failing key is looked at again after a second or so."""

STEP = 0.5
"""Seconds between two looks at the truth, which add to each limit, and what two writes take."""

OPTIONS = Options(**{f.name: "test" for f in dataclasses.fields(Options) if f.default is dataclasses.MISSING})
"""What an installation says matters nothing here."""


class NoCertificates:
    """Workers in memory need none."""

    async def ensure(self, namespace: str) -> str:
        del namespace
        return ""


class Leader:
    """One operator process without its edge: caches, queue, fleet and reconcilers."""

    def __init__(self, cluster: Cluster, epoch: int) -> None:
        loop, api = asyncio.get_running_loop(), cluster.api
        self._api = api
        self.runs: Counter[str] = Counter()
        """Reconciliations so far, by key."""
        self.fleet = Fleet(
            epoch=lambda: epoch,
            identity=lambda: None,
            notify=lambda notice: self.world.notice(notice),  # noqa: PLW0108 - there is no world yet
            on_epoch=lambda _: True,
            dial=lambda member, _: MemoryChannel(cluster.workers.get(member.uid)),
            clock=loop.time,
        )
        metrics = ReconcileMetrics(CollectorRegistry())
        self.world = World(
            client=api,
            fleet=self.fleet,
            events=Events(api, instance="test", metrics=metrics, clock=loop.time, now=cluster.now),
            certificates=NoCertificates(),
            options=cluster.options,
            metrics=metrics,
            enqueue=lambda key, after: self.dispatcher.queue.add(key, after=after),
            epoch=lambda: epoch,
            clock=loop.time,
            now=cluster.now,
            rng=random.Random(epoch),
        )
        self._reconcilers = {
            "model": ModelReconciler(self.world).reconcile,
            "budget": BudgetReconciler(self.world).reconcile,
        }
        self.dispatcher = Dispatcher(
            self._reconcile,
            metrics=ClusterMetrics(CollectorRegistry()),
            lane=lambda key: 0 if key.kind == "budget" else 1,
            rng=random.Random(epoch),
            clock=loop.time,
        )
        self.relist()
        api.listener = self._observe
        self._tasks = [asyncio.create_task(self.dispatcher.run()), asyncio.create_task(self.fleet.run())]

    @property
    def pool(self) -> Pool:
        """What it remembers of the pool."""
        return self.world.pools[NAMESPACE, BUDGET]

    def relist(self) -> None:
        for resource in WATCHED:
            self.world.sweep(resource, self._api.listing(resource), namespace=None)

    def _observe(self, resource: Resource, type_: str | None, obj: dict[str, Any]) -> None:
        if resource in self.world.caches:
            self.world.observe(resource, type_, obj)

    async def die(self) -> None:
        """As after SIGKILL: nothing is written any more."""
        self._api.listener = None
        for task in self._tasks:  # one after the other: a reconciliation that has just begun still joins the fleet
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.world.close()

    async def _reconcile(self, key: Key) -> float | None:
        self.runs[str(key)] += 1
        return await self._reconcilers[key.kind](key)


class Cluster:
    """API, kubelets, workers and at most one leader."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        self.loop = loop
        self.options = dataclasses.replace(OPTIONS, **options)
        self.api = MemoryApi(now=lambda: self.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.api.written = self._judge
        self.workers: dict[str, MemoryWorker] = {}
        self.leader: Leader | None = None
        self.leads_since = loop.time()
        self.epochs = itertools.count(1)
        self.kubelets_look = True
        self.served_at: dict[str, float] = {}
        self.unwanted_at: dict[str, float] = {}
        self.refused, self.refused_at = 0, -1000.0
        self.wrong: list[str] = []
        self._addresses = itertools.count(1)
        self._up_since: dict[str, tuple[bool, float]] = {}

    def now(self) -> dt.datetime:
        return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.loop.time())

    async def run(self) -> None:
        """Kubelets, and a look at the truth at every step."""
        while True:
            self._run_pods()
            self._look()
            await asyncio.sleep(STEP)

    def lead(self) -> Leader:
        """Start an operator."""
        self.leader = Leader(self, next(self.epochs))
        return self.leader

    def live(self) -> list[MemoryWorker]:
        return sorted(self.workers.values(), key=lambda w: w.name)

    def budget(self, replicas: int, **spec: Any) -> None:
        workers = {"replicas": replicas, "backend": "cpu"}
        spec = {"workers": workers, "modelStores": [], "host": {"budget": "0"}, **spec}
        self.api.put(BUDGETS, {"metadata": {"namespace": NAMESPACE, "name": BUDGET}, "spec": spec})

    def annotate(self, **annotations: str) -> None:
        """The annotations of the budget."""
        keyed = {f"ballast.dev/{key}": value for key, value in annotations.items()}
        self.api.annotate(BUDGETS, NAMESPACE, BUDGET, keyed)

    def model(self, name: str, residency: str = "unpinned", replicas: int = 1) -> None:
        source = {"uri": f"file:///models/{name}"}
        spec = {"budgetRef": {"name": BUDGET}, "source": source, "residency": residency, "replicas": replicas}
        self.api.put(MODELS, {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})

    def run_pod(self, pod: dict[str, Any]) -> None:
        """A kubelet gets a new pod, or one that has no worker yet."""
        metadata = pod["metadata"]
        self.workers[metadata["uid"]] = MemoryWorker(metadata["name"])
        self._report(metadata["name"], f"10.0.0.{next(self._addresses) % 250}", ready=True)

    def _run_pods(self) -> None:
        for pod in self.api.all(PODS):
            metadata, status = pod["metadata"], pod.get("status", {})
            worker = self.workers.get(metadata["uid"])
            if "deletionTimestamp" in metadata:
                if worker is None or not worker.up or worker.released or not worker.models:
                    self.end_pod(metadata["uid"], metadata["name"])
            elif worker is None:
                self.run_pod(pod)
            elif self.kubelets_look:
                up, since = self._up_since.get(metadata["uid"], (True, 0.0))
                if up != worker.up:
                    up, since = self._up_since[metadata["uid"]] = worker.up, self.loop.time()
                ready = status["conditions"][0]["status"] == "True"
                if ready != up and self.loop.time() - since >= (2.0 if up else 6.0):
                    self._report(metadata["name"], status["podIP"], ready=up)

    def _report(self, name: str, address: str, *, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self.api.set_status(PODS, NAMESPACE, name, status)

    def end_pod(self, uid: str, name: str) -> None:
        worker = self.workers.pop(uid, None)
        if worker is not None:
            worker.crash()
        self.api.remove(PODS, NAMESPACE, name)

    def _look(self) -> None:
        now = self.loop.time()
        if self.api.refused != self.refused:
            self.refused, self.refused_at = self.api.refused, now
        for model in self.api.all(MODELS):
            uid, name = model["metadata"]["uid"], model["metadata"]["name"]
            if any(worker.answers(name) for worker in self.workers.values()):
                self.served_at[uid] = now
            since = max(self.served_at.get(uid, -1000.0), self.leads_since)
            limit = LIVE_LIMIT + STEP + (RETRY_SECONDS if self.refused_at >= since else 0.0)
            if self.leader is not None and claims_ready(model) and now - since > limit:
                self.wrong.append(f"{name} is Ready, and no worker has served it for {now - since:.1f} s")

    def _judge(self, resource: Any, before: Any, after: Any) -> None:
        """No endpoint of a worker that answers, and says so, may go, unless calls have another place to go."""
        if resource != ENDPOINT_SLICES or before is None or self.leader is None:
            return
        name = before["metadata"]["labels"]["ballast.dev/model"]
        model, budget = self.api.find(MODELS, NAMESPACE, name), self.api.find(BUDGETS, NAMESPACE, BUDGET)
        if model is None or budget is None or model["spec"]["replicas"] == 0:
            return
        if self.loop.time() - self.unwanted_at.get(name, -1000.0) <= STEP:  # it was decided when nobody wanted it
            return
        kept = uids(after)
        if any(uid in self.workers and self.workers[uid].answers(name) for uid in kept):
            return
        for uid in uids(before) - kept:
            worker, view = self.workers.get(uid), self.leader.fleet.view(uid)
            pod = next((p for p in self.leader.world.caches[PODS] if p["metadata"]["uid"] == uid), None)
            trusted = pod is not None and self.leader.world.read_pod(pod).ready
            denied = view is not None and not view.stale(self.loop.time()) and view.known and not view.can_call(name)
            if worker is not None and worker.answers(name) and trusted and not denied:
                self.wrong.append(f"the endpoint {worker.name} of {name} was removed, and it answers")


def play(scene: Callable[[Cluster], Awaitable[None]], *, cluster: type[Cluster] = Cluster, **options: Any) -> None:
    """Play a scene on a cluster of its own; kubelets run from the start, an operator as soon as the scene says `lead`."""
    loop = VirtualLoop()

    async def run() -> None:
        whole = cluster(loop, **options)
        kubelets = asyncio.create_task(whole.run())
        try:
            await scene(whole)
        finally:
            if whole.leader is not None:
                await whole.leader.die()
            kubelets.cancel()
            await asyncio.gather(kubelets, return_exceptions=True)

    try:
        loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def claims_ready(model: dict[str, Any]) -> bool:
    conditions = model.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def uids(obj: Any) -> set[str]:
    return {e["targetRef"]["uid"] for e in (obj or {}).get("endpoints") or ()}
