# SPDX-License-Identifier: Apache-2.0
"""What reconciliations share: caches, client, workers, queue, clocks; and which keys a change makes dirty."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field

from ballast_contract import names
from ballast_operator.cluster import resources
from ballast_operator.cluster.cache import Cache, Change
from ballast_operator.cluster.client import Client, Listing, Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.resources import Resource
from ballast_operator.fleet.fleet import Fleet, Notice
from ballast_operator.reconcile import naming, pods, wishes
from ballast_operator.reconcile.certificates import Certificates
from ballast_operator.reconcile.events import Events
from ballast_operator.reconcile.metrics import ReconcileMetrics
from ballast_operator.reconcile.options import Options
from ballast_operator.reconcile.pods import Pod
from ballast_operator.reconcile.pool import Pool

logger = logging.getLogger(__name__)


def model_key(namespace: str, name: str) -> Key:
    """The key of an InferenceModel."""
    return Key("model", namespace, name)


def budget_key(namespace: str, name: str) -> Key:
    """The key of a WeightBudget."""
    return Key("budget", namespace, name)


def budgets_by_namespace(world: World) -> dict[str, list[Object]]:
    """Every WeightBudget, by namespace."""
    found: dict[str, list[Object]] = defaultdict(list)
    for budget in world.caches[resources.BUDGETS]:
        found[budget["metadata"]["namespace"]].append(budget)
    return found


def _label(label: str) -> Callable[[Object], str | None]:
    return lambda obj: obj["metadata"].get("labels", {}).get(label)


def _served(obj: Object) -> str:
    return f"{wishes.budget_name(obj)}/{wishes.served_name(obj)}"


def make_caches() -> dict[Resource, Cache]:
    """One empty cache for each watched kind, with the groups that reconciliations ask for."""
    by_budget = {"budget": _label(names.LABEL_BUDGET)}
    return {
        resources.MODELS: Cache({"budget": wishes.budget_name, "served": _served}),
        resources.BUDGETS: Cache(),
        resources.PODS: Cache({"uid": lambda obj: str(obj["metadata"]["uid"]), "budget": naming.budget_of}),
        resources.SERVICES: Cache(by_budget),
        resources.ENDPOINT_SLICES: Cache({"service": _label(naming.SERVICE_LABEL), **by_budget}),
        resources.CONFIG_MAPS: Cache(by_budget),
        resources.DISRUPTION_BUDGETS: Cache(by_budget),
    }


@dataclass(slots=True)
class World:
    """Everything a reconciliation works with. One loop owns it."""

    client: Client
    fleet: Fleet
    events: Events
    certificates: Certificates
    options: Options
    metrics: ReconcileMetrics
    enqueue: Callable[[Key, float], None]
    """Makes a key dirty, in so many seconds."""
    epoch: Callable[[], int]
    clock: Callable[[], float]
    """Monotonic seconds."""
    now: Callable[[], dt.datetime]
    """The time of day, UTC."""
    rng: random.Random
    caches: dict[Resource, Cache] = field(default_factory=make_caches)
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)
    _pods: dict[str, tuple[str, Pod]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def observe(self, resource: Resource, type_: str | None, obj: Object, *, by: Key | None = None) -> bool:
        """Take a watch event, or the answer to a write of the reconciliation of `by`, which is not called again for it.

        Returns whether it said anything new.
        """
        change = self.caches[resource].observe(type_, obj)
        if change is not None:
            self._mark(resource, change, by=by)
        return change is not None

    def sweep(self, resource: Resource, listing: Listing, *, namespace: str | None) -> int:
        """Take a complete list; returns how many objects it corrected."""
        changes = self.caches[resource].sweep(listing, namespace=namespace)
        for change in changes:
            self._mark(resource, change, by=None)
        return len(changes)

    def notice(self, notice: Notice) -> None:
        """Take what a worker told."""
        member = notice.member
        for obj in notice.urgent:
            self.enqueue(_key_of_object(obj), 0.0)
        for obj in notice.figures:
            self.enqueue(_key_of_object(obj), self.options.figures_seconds)
        budget = budget_key(member.namespace, member.budget)
        if notice.worker or notice.urgent:
            self.enqueue(budget, 0.0)
        elif notice.device:
            self.enqueue(budget, self.options.figures_seconds)

    def read_pod(self, obj: Object) -> Pod:
        """A cached pod, read once for each of its versions."""
        metadata = obj["metadata"]
        version = metadata.get("resourceVersion", "")
        known = self._pods.get(metadata["uid"])
        if known is None or known[0] != version:
            known = self._pods[metadata["uid"]] = (version, pods.read(obj))
        return known[1]

    def background(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Run something beside the reconciliations; it handles its own errors, and one that it does not is logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed unexpectedly", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Stop everything that runs beside the reconciliations."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(pool.close() for pool in self.pools.values()), return_exceptions=True)
        await self.events.close()

    def pool(self, namespace: str, name: str) -> Pool | None:
        """The pool of a budget, once its reconciliation has begun."""
        return self.pools.get((namespace, name))

    def namesakes(self, obj: Object) -> list[Object]:
        """Every InferenceModel of the same budget with the same served name, this one included."""
        return self.caches[resources.MODELS].group("served", obj["metadata"]["namespace"], _served(obj))

    def _mark(self, resource: Resource, change: Change, *, by: Key | None) -> None:
        if resource == resources.PODS and change.before is not None:
            self._pods.pop(change.before["metadata"]["uid"], None)  # read again where it is still there
        for key in self._dirty(resource, change):
            if key != by:
                self.enqueue(key, 0.0)

    def _dirty(self, resource: Resource, change: Change) -> Iterable[Key]:
        obj = change.either
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        labels = obj["metadata"].get("labels", {})
        if resource == resources.MODELS:
            yield model_key(namespace, name)
            if _wish(change.before) != _wish(change.after):
                yield from self._neighbours(change)
        elif resource == resources.BUDGETS:
            yield budget_key(namespace, name)
            if _wish(change.before) != _wish(change.after):
                for model in self.caches[resources.MODELS].group("budget", namespace, name):
                    yield model_key(namespace, model["metadata"]["name"])
        elif resource == resources.PODS:
            yield budget_key(namespace, naming.budget_of(obj) or "")
            if _presence(change.before) != _presence(change.after):
                yield from self._held_by(obj)
        else:
            if names.LABEL_MODEL in labels:
                yield model_key(namespace, labels[names.LABEL_MODEL])
            yield budget_key(namespace, labels.get(names.LABEL_BUDGET, ""))

    def _held_by(self, pod: Object) -> Iterable[Key]:
        """The models that a pod was told to hold, or that the last leader wanted on a pod which was not heard yet."""
        metadata = pod["metadata"]
        link = self.fleet.link(metadata["uid"])
        if link is not None and link.desired is not None:
            yield from (_key_of_object(message.object) for message in link.desired.models)
            return
        namespace, budget = metadata.get("namespace", ""), naming.budget_of(pod) or ""
        pool = self.pool(namespace, budget)
        if pool is None:
            return
        for model in self.caches[resources.MODELS].group("budget", namespace, budget):
            uid = model["metadata"]["uid"]
            if metadata["name"] in pool.targets.get(uid, ()) or metadata["uid"] in pool.holders.get(uid, ()):
                yield model_key(namespace, model["metadata"]["name"])

    def _neighbours(self, change: Change) -> Iterable[Key]:
        for side in (change.before, change.after):
            if side is None:
                continue
            yield budget_key(side["metadata"]["namespace"], wishes.budget_name(side))
            for other in self.namesakes(side):
                yield model_key(other["metadata"]["namespace"], other["metadata"]["name"])


def _wish(obj: Object | None) -> object:
    """What of an InferenceModel or WeightBudget others depend on: everything but its status."""
    if obj is None:
        return None
    metadata = obj["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("annotations"), wishes.deleting(obj)


def _presence(obj: Object | None) -> object:
    if obj is None:
        return None
    pod = pods.read(obj)
    return pod.ready, pod.terminating, pod.finished, pod.ip


def _key_of_object(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return model_key(namespace, name)
