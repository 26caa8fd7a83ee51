# SPDX-License-Identifier: Apache-2.0
"""An HTTPRoute that the API server refuses stands in the status of its pool, and in the way of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.memory_cluster import BUDGET, NAMESPACE
from helpers.memory_scene import Scene

from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import BUDGETS, HTTP_ROUTES, MODELS, PODS, Resource

REFUSALS = [
    errors.Unavailable("failed calling webhook 'validate.front': connection refused", status=500),
    errors.Invalid("spec.parentRefs[0].namespace: Invalid value", status=422),
    errors.Forbidden("admission webhook denied the request", status=403),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda e: type(e).__name__)
def test_a_pool_whose_route_is_refused_goes_on_and_says_so(scene: Scene, refusal: errors.ApiError):
    scene.api.admit = lambda resource, *_: refusal if resource == HTTP_ROUTES else None
    scene.budget()
    scene.leads()
    scene.budget(replicas=2, serving={"gatewayRef": {"name": "front"}})
    scene.model("late")
    scene.passes(30)
    assert len(scene.api.all(PODS)) == 2
    assert scene.said(MODELS, "late", "Ready")[0] == "True"
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "RouteNotServed")
    assert refusal.message in message
    assert scene.said(BUDGETS, BUDGET, "Ready")[0] == "True"
    scene.api.admit = lambda *_: None
    scene.passes(90)
    assert scene.api.find(HTTP_ROUTES, NAMESPACE, f"{BUDGET}-pool") is not None
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_a_route_that_is_not_wished_any_more_is_removed_once_that_is_possible(scene: Scene):
    scene.budget(serving={"gatewayRef": {"name": "front"}})
    scene.leads()
    assert scene.api.find(HTTP_ROUTES, NAMESPACE, f"{BUDGET}-pool") is not None
    down = errors.Unavailable("failed calling webhook", status=500)
    scene.api.admit = lambda resource, *_: down if resource == HTTP_ROUTES else None
    scene.budget(replicas=2)
    scene.passes(30)
    assert len(scene.api.all(PODS)) == 2
    scene.api.admit = lambda *_: None
    scene.passes(90)
    assert scene.api.find(HTTP_ROUTES, NAMESPACE, f"{BUDGET}-pool") is None
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


@pytest.mark.parametrize("refusal", REFUSALS[1:], ids=lambda e: type(e).__name__)
def test_a_route_that_may_not_be_removed_is_told_until_it_is(scene: Scene, refusal: errors.ApiError):
    scene.budget(serving={"gatewayRef": {"name": "front"}})
    scene.model("ada")
    scene.leads()
    scene.api.admit = lambda resource, _, after: refusal if resource == HTTP_ROUTES and after is None else None
    scene.budget()
    scene.passes(30)
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "RouteNotServed")
    assert refusal.message in message
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert scene.runs("budget/ns/default") < 30
    scene.api.admit = lambda *_: None
    scene.passes(90)
    assert scene.api.find(HTTP_ROUTES, NAMESPACE, f"{BUDGET}-pool") is None
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_who_may_not_look_at_routes_and_wants_none_is_told_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    get = scene.api.get

    async def forbid(resource: Resource, namespace: str | None, name: str) -> Any:
        if resource == HTTP_ROUTES:
            raise REFUSALS[2]
        return await get(resource, namespace, name)

    monkeypatch.setattr(scene.api, "get", forbid)
    scene.budget()
    scene.leads()
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"
