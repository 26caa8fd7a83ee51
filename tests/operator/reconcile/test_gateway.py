# SPDX-License-Identifier: Apache-2.0
"""An HTTPRoute that the API server refuses stands in the status of its pool, and in the way of nothing else."""

from __future__ import annotations

import pytest
from helpers.memory_cluster import BUDGET, NAMESPACE
from helpers.memory_scene import Scene

from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import BUDGETS, HTTP_ROUTES, MODELS, PODS

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
