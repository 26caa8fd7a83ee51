# SPDX-License-Identifier: Apache-2.0
"""Writing to the API server: children that are as wanted, statuses only when they differ, Events at transitions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import MANAGED_BY, MODELS, Resource
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.conditions import Fact, keep, merge
from ballast_operator.reconcile.events import Severity
from ballast_operator.reconcile.world import World

PLACEMENT_MANAGER: Final = f"{MANAGED_BY}-placement"
"""Field manager of status.assignment, which is written before workers are told, and by another reconciliation."""

UNWATCHED_SECONDS: Final = 15.0
"""What no watch tells of is looked at again after so long: what is not ours, and what the API server refuses."""

_MAP_KEYS: Final = {"conditions": "type", "workers": "name", "plan": "line"}

_QUIET: Final = frozenset(
    {
        Reason.PENDING,
        Reason.LOADING,
        Reason.MEASURING,
        Reason.WORKERS_STARTING,
        Reason.NOT_REQUESTED,
        Reason.UNKNOWN,
        Reason.ACCEPTED,
        Reason.AS_EXPECTED,
        Reason.NOT_FRAGMENTED,
        Reason.UP_TO_DATE,
        Reason.PLAN_FITS,
        Reason.PLACED,
        Reason.PREPARED,
        Reason.LOADED,
        Reason.READY,
        Reason.UPDATE_AVAILABLE,
    }
)
"""Reasons that are progress: conditions show it, no Event says it."""

_POOL_TROUBLES: Final = frozenset(
    {
        Reason.PODS_FORBIDDEN,
        Reason.INVALID_POD_TEMPLATE,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL_FAILED,
        Reason.WORKER_CRASHED,
        Reason.PLAN_REFUSED,
        Reason.HEARTBEAT_STALE,
        Reason.CERTIFICATE_REFUSED,
        Reason.EPOCH_REFUSED,
        Reason.SECRET_CONFLICT,
        Reason.CONFIG_MAP_CONFLICT,
        Reason.WRITE_REFUSED,
        Reason.SHM_TOO_SMALL,
    }
)
"""What the Events of the budget say once; its models, which may be many, show it in their conditions."""


async def ensure(world: World, resource: Resource, body: Object, *, uid: str, by: Key) -> str:
    """Make a child of the object `uid` as wanted; returns why that is not possible, or nothing.

    What stands under the name and is not ours, or is of another owner, is left alone. A quota, an admission policy or a
    schema that refuses it is such a reason; every other error of the API server is raised.
    """
    try:
        return await _ensure(world, resource, body, uid=uid, by=by)
    except errors.Refused as error:
        return f"the API server refuses {resource.kind} '{body['metadata']['name']}': {error.message}"


async def _ensure(world: World, resource: Resource, body: Object, *, uid: str, by: Key) -> str:
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    held = world.caches[resource].get(namespace, name)
    if held is None:
        try:
            world.observe(resource, None, await world.client.create(resource, body, priority=Priority.READY), by=by)
            return ""
        except errors.AlreadyExists:
            try:
                held = await world.client.get(resource, namespace, name)
            except errors.NotFound:  # it went away between the two calls: the next attempt makes it
                return f"{resource.kind} '{name}' is just being deleted"
    if not naming.is_ours(held):
        return f"{resource.kind} '{name}' exists and was not made by Ballast: rename one of the two, or delete it"
    if naming.owner_uid(held) != uid:
        return f"{resource.kind} '{name}' belongs to another object of ours, and is waited for to go"
    world.observe(resource, None, held, by=by)
    if "deletionTimestamp" in held["metadata"]:
        return f"{resource.kind} '{name}' is being deleted"
    if not naming.contains(held, body):
        bound = {**body, "metadata": {**body["metadata"], "uid": held["metadata"]["uid"]}}
        world.observe(resource, None, await world.client.apply(resource, bound, priority=Priority.READY), by=by)
    return ""


async def delete(world: World, resource: Resource, obj: Object, *, by: Key) -> str:
    """Delete this very object, not another that took its name; returns why the API server refuses that, or nothing."""
    metadata = obj["metadata"]
    refusal = await end(world, resource, metadata["namespace"], metadata["name"], uid=metadata["uid"])
    if not refusal and not metadata.get("finalizers"):
        world.observe(resource, "DELETED", obj, by=by)
    return refusal


async def end(
    world: World,
    resource: Resource,
    namespace: str,
    name: str,
    *,
    uid: str,
    grace_seconds: int | None = None,
    priority: Priority = Priority.READY,
) -> str:
    """As `delete`, for what may go on existing, as a pod does for its grace: whoever calls looks what became of it."""
    try:
        await world.client.delete(resource, namespace, name, uid=uid, grace_seconds=grace_seconds, priority=priority)
    except errors.Conflict:  # another has its name: it is gone
        return ""
    except errors.Refused as error:
        return f"the API server refuses to delete {resource.kind} '{name}': {error.message}"
    return ""


async def write_status(
    world: World,
    resource: Resource,
    obj: Object,
    facts: Mapping[str, Fact],
    body: Mapping[str, Any],
    *,
    by: Key,
    urgent: Sequence[str],
    figures_due: bool,
) -> bool | None:
    """Write a status when it differs.

    Conditions and the `urgent` fields are written at once, everything else when `figures_due`, or along with them.

    Returns whether something was written; None when figures differ and wait for their time.
    """
    existing: Mapping[str, Any] = obj.get("status") or {}
    metadata = obj["metadata"]
    generation = int(metadata.get("generation", 0))
    whole = {
        "observedGeneration": generation,
        **body,
        "conditions": merge(facts, existing.get("conditions", ()), generation=generation, now=world.now()),
    }
    wanted = declared(whole, resource.kind, world.options.stale_definitions)
    ours = {key: value for key, value in existing.items() if key != "assignment"}
    if _normal(wanted) == _normal(ours):
        return False
    pressing = _pressing(wanted, urgent) != _pressing(ours, urgent)
    if not pressing and not figures_due:
        return None
    written = {
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
        "status": wanted,
    }
    priority = Priority.READY if pressing else Priority.FIGURES
    answer = await world.client.apply_status(resource, written, manager=MANAGED_BY, priority=priority)
    world.metrics.status_writes.labels(resource.plural, "urgent" if pressing else "figures").inc()
    world.observe(resource, None, answer, by=by)
    _announce(world, obj, resource.kind, facts, existing.get("conditions", ()))
    return True


def declared(body: Mapping[str, Any], kind: str, stale: Sequence[str]) -> dict[str, Any]:
    """A status without the fields that the installed definition lacks: for one of them the API server refuses the whole.

    Args:
        body: the status.
        kind: of the object.
        stale: what installed definitions lack, as in "WeightBudget status.hostNodes" or, of each item of a list,
            "WeightBudget status.workers[].free".
    """
    found = copy.deepcopy(dict(body))
    for text in stale:
        of, _, path = text.partition(" ")
        top, *keys = path.split(".")
        if of == kind and top == "status" and keys:
            _drop(found, *keys)
    return found


def _drop(value: Any, key: str, *below: str) -> None:
    """Remove a field from an object, or from each of a list."""
    if isinstance(value, list):
        for item in value:
            _drop(item, key, *below)
    elif isinstance(value, dict) and below:
        _drop(value.get(key.removesuffix("[]")), *below)
    elif isinstance(value, dict):
        value.pop(key, None)


def _announce(
    world: World, obj: Object, kind: str, facts: Mapping[str, Fact], existing: Sequence[Mapping[str, Any]]
) -> None:
    """One Event for each condition that turned into something a person should know of."""
    for type_, fact in facts.items():
        before = keep(existing, type_)
        if before is not None and (before.status, before.reason) == (fact.status, fact.reason):
            continue
        severity = _severity(type_, before, fact)
        told_by_budget = kind == MODELS.kind and fact.reason in _POOL_TROUBLES
        if severity is not None and not told_by_budget:
            note = fact.message or f"{type_} is {fact.status}"
            world.events.post(obj, kind, severity, fact.reason, type_, note, stands=True)


def _severity(type_: str, before: Fact | None, fact: Fact) -> Severity | None:
    if type_ == "Ready":
        if fact.holds:
            return "Normal"
        return "Warning" if before is not None and before.holds else None
    good = "False" if type_ in ("Degraded", "Fragmented") else "True"
    if fact.status == good or fact.reason in _QUIET:
        return None
    return "Warning"


def _normal(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status as a value: lists that are maps by their keys, what is empty left out."""
    found: dict[str, Any] = {}
    for key, value in status.items():
        if key in _MAP_KEYS and isinstance(value, list):
            found[key] = {item[_MAP_KEYS[key]]: item for item in value}
        elif value not in (None, {}, []):
            found[key] = value
    return {key: value for key, value in found.items() if value != {}}


def _pressing(status: Mapping[str, Any], urgent: Sequence[str]) -> object:
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())}
    return conditions, status.get("observedGeneration"), [status.get(field) for field in urgent]
