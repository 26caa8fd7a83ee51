# SPDX-License-Identifier: Apache-2.0
"""One HTTPRoute for a pool, where its budget names a Gateway and the Gateway API is served."""

from __future__ import annotations

import logging
from typing import Any, Final

from ballast_contract import names
from ballast_operator.api.weightbudget import GatewayRef
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import BUDGETS, HTTP_ROUTES
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.world import World

logger = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS: Final = 60.0
"""The kind is not watched, because most clusters do not serve it."""


def route(budget: Object, ref: GatewayRef) -> Object:
    """The HTTPRoute that leads every HTTP call at a Gateway to the pool's Service."""
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    parent: dict[str, Any] = {"name": ref.name}
    if ref.namespace is not None:
        parent["namespace"] = ref.namespace
    if ref.section_name is not None:
        parent["sectionName"] = ref.section_name
    service = naming.pool_service(name)
    metadata = {
        "name": service,
        "namespace": namespace,
        "labels": naming.labels(component="pool", budget=name),
        "ownerReferences": naming.owner(BUDGETS, budget),
    }
    rules = [{"backendRefs": [{"name": service, "port": names.HTTP_PORT}]}]
    return {"metadata": metadata, "spec": {"parentRefs": [parent], "rules": rules}}


async def tend(world: World, budget: Object, pool: Pool, ref: GatewayRef | None) -> None:
    """Make the route as wished, or remove it, and note in `pool.unrouted` what is in the way. Raises Fenced."""
    wished, looked_at = pool.route or ("never", float("-inf"))
    settled = ref is None and not pool.unrouted
    fresh = settled or world.clock() - looked_at < _LOOK_AGAIN_SECONDS
    if wished == ref and fresh:
        return
    try:
        pool.unrouted = await _make(world, budget, ref)
    except errors.Fenced:
        raise
    except errors.ApiError as error:
        if ref is None and not isinstance(error, errors.Refused):
            # One may be left, and is tried again at the next reconciliation.
            logger.info("%s: the HTTPRoute cannot be removed yet: %s", budget["metadata"]["name"], error)
            return
        pool.unrouted = f"the API server refuses the HTTPRoute: {error}"
    pool.route = ref, world.clock()


async def _make(world: World, budget: Object, ref: GatewayRef | None) -> str:
    namespace, name = budget["metadata"]["namespace"], naming.pool_service(budget["metadata"]["name"])
    try:
        held: Object | None = await world.client.get(HTTP_ROUTES, namespace, name)
    except errors.NotFound:
        held = None
    except errors.Forbidden:
        if ref is None:  # who may not look at routes has made none
            return ""
        raise
    ours = held is not None and naming.is_ours(held) and naming.owner_uid(held) == budget["metadata"]["uid"]
    if ref is None:
        if ours and held is not None:
            await world.client.delete(HTTP_ROUTES, namespace, name, uid=held["metadata"]["uid"])
        return ""
    if held is not None and not ours:
        return f"HTTPRoute '{name}' exists and is not of this WeightBudget: rename or delete it"
    body = route(budget, ref)
    if held is None:
        try:
            await world.client.create(HTTP_ROUTES, body)
        except errors.NotFound:
            return (
                f"spec.serving.gatewayRef names the Gateway '{ref.name}', and the API server does not serve "
                f"{HTTP_ROUTES.api_version} HTTPRoute: install the Gateway API, or leave gatewayRef out"
            )
        return ""
    if not naming.contains(held, body):
        await world.client.apply(HTTP_ROUTES, body)
    return _refusal(held, name)


def _refusal(held: Object, name: str) -> str:
    """Why a Gateway does not take the route, in its own words."""
    for parent in (held.get("status") or {}).get("parents", ()):
        for condition in parent.get("conditions", ()):
            if condition["type"] == "Accepted" and condition["status"] == "False":
                gateway = parent["parentRef"]["name"]
                return f"Gateway '{gateway}' does not accept HTTPRoute '{name}': {condition.get('message', '')}"
    return ""
