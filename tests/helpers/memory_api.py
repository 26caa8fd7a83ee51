# SPDX-License-Identifier: Apache-2.0
"""The API server as the reconcilers see it, in memory: for faults at every step and time that only a test moves."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Listing, Object
from ballast_operator.cluster.resources import BUDGETS, MODELS, PODS, Resource, selector_of

Name = tuple[str, str]

_UIDS = itertools.count(1)


class MemoryApi:
    """Objects by kind and name; `refuse` so many of the next calls; a cut `watch` keeps what happens from `listeners`.

    `written` is called before each change that the operator makes, with the object as it was and as it becomes; `admit`
    before `written`, with the same: what it returns is raised, as by a quota or an admission policy.
    """

    def __init__(self, *, now: Callable[[], str]) -> None:
        self.objects: dict[Resource, dict[Name, Object]] = {}
        self.refuse = 0
        self.refused = 0
        """Calls that were refused."""
        self.events: list[Object] = []
        """Every Event that was posted."""
        self.listener: Callable[[Resource, str | None, Object], None] | None = None
        self.watching = True
        self.written: Callable[[Resource, Object | None, Object | None], None] = lambda *_: None
        self.admit: Callable[[Resource, Object | None, Object | None], errors.ApiError | None] = lambda *_: None
        self._now = now
        self._versions = itertools.count(1)
        self._managed: dict[tuple[str, str], dict[str, Any]] = {}

    # What the operator calls.

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        self._fault()
        return copy.deepcopy(self._held(resource, namespace or "", name))

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str | None = None) -> Listing:
        self._fault()
        return self.listing(resource)

    async def create(self, resource: Resource, body: Object, **_: Any) -> Object:
        self._fault()
        if resource.plural == "events":
            self.events.append(body)
            return body
        self._admit(resource, None, body)
        if self._name(body) in self._of(resource):
            raise errors.AlreadyExists("it exists", status=409)
        self.written(resource, None, body)
        return self.put(resource, body)

    async def apply(self, resource: Resource, body: Object, **_: Any) -> Object:
        self._fault()
        held = self._same(resource, body)
        self._admit(resource, held, body)
        self.written(resource, held, body)
        metadata = {**held["metadata"], **{k: v for k, v in body["metadata"].items() if k != "uid"}}
        return self._replace(resource, {**held, **body, "metadata": metadata})

    async def apply_status(self, resource: Resource, body: Object, *, manager: str, **_: Any) -> Object:
        self._fault()
        held = self._same(resource, body)
        self._admit(resource, held, body)
        self._managed[held["metadata"]["uid"], manager] = body["status"]
        status: dict[str, Any] = {}
        for (uid, _manager), part in self._managed.items():
            if uid == held["metadata"]["uid"]:
                status |= part
        return self._replace(resource, {**held, "status": copy.deepcopy(status)})

    async def patch(self, resource: Resource, namespace: str, name: str, body: Any, **_: Any) -> Object:
        """Merge patches of finalizers: the only ones that the operator sends."""
        self._fault()
        before = self._held(resource, namespace, name)
        if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise errors.Conflict("the object has been modified", status=409)
        held = copy.deepcopy(before)
        held["metadata"]["finalizers"] = body["metadata"]["finalizers"] or []
        self._admit(resource, before, held)
        if "deletionTimestamp" in held["metadata"] and not held["metadata"].get("finalizers"):
            self.remove(resource, namespace, name)
            return held
        return self._replace(resource, held)

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, **_: Any) -> None:
        self._fault()
        held = self._of(resource).get((namespace, name))
        if held is None:
            return
        if held["metadata"]["uid"] != uid:
            raise errors.Conflict("another uid", status=409)
        self._admit(resource, held, None)
        self.written(resource, held, None)
        self.end(resource, namespace, name)

    # What the test does.

    def listing(self, resource: Resource) -> Listing:
        items = tuple(copy.deepcopy(obj) for obj in self._of(resource).values() if _selected(resource, obj))
        return Listing(items, str(next(self._versions)))

    def all(self, resource: Resource) -> list[Object]:
        return list(self._of(resource).values())

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._of(resource).get((namespace, name))

    def put(self, resource: Resource, body: Object) -> Object:
        """Create an object, or give an existing one another spec, and the annotations that are given."""
        held = self._of(resource).get(self._name(body))
        if held is not None:
            metadata = {**held["metadata"], "generation": held["metadata"]["generation"] + 1}
            metadata |= {key: body["metadata"][key] for key in ("annotations",) if key in body["metadata"]}
            return self._replace(resource, {**held, "spec": body["spec"], "metadata": metadata})
        metadata = {
            **body["metadata"],
            "uid": f"{next(_UIDS):032x}",  # of the whole run: parsed specs are remembered by uid
            "generation": 1,
            "creationTimestamp": self._now(),
        }
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        return self._replace(resource, whole)

    def label(self, resource: Resource, namespace: str, name: str, labels: dict[str, str]) -> None:
        held = self._held(resource, namespace, name)
        self._replace(resource, {**held, "metadata": {**held["metadata"], "labels": labels}})

    def annotate(self, resource: Resource, namespace: str, name: str, annotations: dict[str, str]) -> None:
        held = self._held(resource, namespace, name)
        self._replace(resource, {**held, "metadata": {**held["metadata"], "annotations": annotations}})

    def set_status(self, resource: Resource, namespace: str, name: str, status: Any) -> None:
        self._replace(resource, {**self._held(resource, namespace, name), "status": status})

    def end(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete: pods and what has finalizers are only marked."""
        held = self._held(resource, namespace, name)
        if resource == PODS or held["metadata"].get("finalizers"):
            self._replace(resource, {**held, "metadata": {**held["metadata"], "deletionTimestamp": self._now()}})
            return
        self.remove(resource, namespace, name)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Gone, and with it what belongs to it."""
        held = self._of(resource).pop((namespace, name), None)
        if held is None:
            return
        gone = {**held, "metadata": {**held["metadata"], "resourceVersion": str(next(self._versions))}}
        self._tell(resource, "DELETED", gone)
        if resource in (MODELS, BUDGETS):
            self._collect(held["metadata"]["uid"])

    def _collect(self, uid: str) -> None:
        for resource, objects in list(self.objects.items()):
            for (namespace, name), obj in list(objects.items()):
                if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ())):
                    self.end(resource, namespace, name)

    def _replace(self, resource: Resource, obj: Object) -> Object:
        stored = copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        before = self._of(resource).get(self._name(stored))
        self._of(resource)[self._name(stored)] = stored
        if before is not None and _selected(resource, before) and not _selected(resource, stored):
            gone = {
                **before,
                "metadata": {**before["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]},
            }
            self._tell(resource, "DELETED", gone)  # as a watch with a selector says it
        self._tell(resource, "MODIFIED", stored)
        return copy.deepcopy(stored)

    def _tell(self, resource: Resource, type_: str, obj: Object) -> None:
        if self.watching and self.listener is not None and _selected(resource, obj):
            self.listener(resource, type_, copy.deepcopy(obj))

    def _fault(self) -> None:
        if self.refuse > 0:
            self.refuse -= 1
            self.refused += 1
            raise errors.Unavailable("the server is overloaded", status=503)

    def _admit(self, resource: Resource, before: Object | None, after: Object | None) -> None:
        if (error := self.admit(resource, before, after)) is not None:
            raise error

    def _same(self, resource: Resource, body: Object) -> Object:
        held = self._held(resource, *self._name(body))
        if body["metadata"].get("uid", held["metadata"]["uid"]) != held["metadata"]["uid"]:
            raise errors.Conflict("another uid", status=409)
        return held

    def _held(self, resource: Resource, namespace: str, name: str) -> Object:
        held = self._of(resource).get((namespace, name))
        if held is None:
            raise errors.NotFound(f"{resource.kind} {namespace}/{name}", status=404)
        return held

    def _of(self, resource: Resource) -> dict[Name, Object]:
        return self.objects.setdefault(resource, {})

    @staticmethod
    def _name(body: Object) -> Name:
        return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _selected(resource: Resource, obj: Object) -> bool:
    selector = selector_of(resource)
    if selector is None:
        return True
    key, _, value = selector.partition("=")
    return obj["metadata"].get("labels", {}).get(key) == value
