# SPDX-License-Identifier: Apache-2.0
"""What stands where the children of a pool and of its models should, and what the API server refuses of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.memory_cluster import BUDGET, NAMESPACE, uids
from helpers.memory_scene import Scene

from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import (
    BUDGETS,
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    MODELS,
    PODS,
    SERVICES,
    Resource,
)

QUOTA = errors.Forbidden("exceeded quota: objects", status=403)
POLICY = errors.Invalid("a policy finds it invalid", status=422)


def refuse(scene: Scene, kind: Resource, error: errors.ApiError, *, name: str = "") -> None:
    """From now on nothing of a kind is made or changed; what is deleted goes."""

    def admit(resource: Resource, before: Any, after: Any) -> errors.ApiError | None:
        refused = resource == kind and after is not None and name in ("", after["metadata"]["name"])
        return error if refused else None

    scene.api.admit = admit


@pytest.mark.parametrize("error", [QUOTA, POLICY], ids=["quota", "policy"])
@pytest.mark.parametrize("kind", [SERVICES, DISRUPTION_BUDGETS], ids=lambda kind: kind.plural)
def test_a_new_pool_has_its_pods_and_a_status_where_what_stands_around_them_is_refused(
    scene: Scene, kind: Resource, error: errors.ApiError
):
    refuse(scene, kind, error)
    scene.budget()
    scene.leads()
    assert len(scene.api.all(PODS)) == 1
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "ServiceConflict")
    assert error.message in message
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert len(scene.api.all(SERVICES)) == 2
    assert len(scene.api.all(DISRUPTION_BUDGETS)) == 1
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_a_pool_without_workers_looks_again_whether_it_may_have_its_services(scene: Scene):
    refuse(scene, SERVICES, QUOTA)
    scene.budget(replicas=0)
    scene.leads()
    scene.passes(30)
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert len(scene.api.all(SERVICES)) == 2


@pytest.mark.parametrize("error", [QUOTA, POLICY], ids=["quota", "policy"])
def test_a_pool_whose_configuration_is_refused_says_why_it_has_no_pods(scene: Scene, error: errors.ApiError):
    refuse(scene, CONFIG_MAPS, error)
    scene.budget()
    scene.model("ada")
    scene.leads()
    assert scene.api.all(PODS) == []
    for resource, name, type_ in ((BUDGETS, BUDGET, "WorkersReady"), (MODELS, "ada", "Ready")):
        status, reason, message = scene.said(resource, name, type_)
        assert (status, reason) == ("False", "ConfigMapConflict")
        assert error.message in message
    assert ("Warning", "ConfigMapConflict") in {(event["type"], event["reason"]) for event in scene.api.events}
    scene.api.admit = lambda *_: None
    scene.passes(40)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_configuration_that_is_refused_is_tried_ever_more_seldom(scene: Scene):
    tried: list[float] = []

    def admit(resource: Resource, *_: Any) -> errors.ApiError | None:
        if resource != CONFIG_MAPS:
            return None
        tried.append(scene.loop.time())
        return QUOTA

    scene.api.admit = admit
    scene.budget()
    scene.leads()
    scene.passes(120)
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert len(gaps) > 6
    assert min(gaps) > 1.5
    assert all(14 < gap < 17 for gap in gaps[4:])


def test_demand_that_cannot_be_kept_is_logged_and_models_are_placed(scene: Scene, caplog: pytest.LogCaptureFixture):
    refuse(scene, CONFIG_MAPS, QUOTA, name=f"{BUDGET}-demand")
    scene.budget()
    scene.model("ada")
    scene.leads()
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert any("demand" in r.message and QUOTA.message in r.message for r in caplog.records)


@pytest.mark.parametrize("error", [QUOTA, POLICY], ids=["quota", "policy"])
def test_a_model_whose_service_is_refused_says_so_and_claims_nothing_else(scene: Scene, error: errors.ApiError):
    scene.budget()
    scene.model("ada")
    scene.leads()
    refuse(scene, SERVICES, error)
    scene.model("ben")
    scene.api.remove(SERVICES, NAMESPACE, "ada")
    scene.passes(30)
    for name in ("ada", "ben"):
        status, reason, message = scene.said(MODELS, name, "Ready")
        assert (status, reason) == ("False", "ServiceConflict")
        assert error.message in message
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert scene.said(MODELS, "ben", "Ready")[0] == "True"


def test_the_endpoints_behind_a_service_that_may_not_be_changed_follow_the_workers(scene: Scene):
    scene.budget()
    scene.model("ada")
    scene.leads()
    service = scene.get(SERVICES, "ada")
    refuse(scene, SERVICES, POLICY)
    scene.api.put(SERVICES, {**service, "spec": {**service["spec"], "ports": []}})
    [worker] = scene.cluster.live()
    worker.crash()
    scene.passes(40)
    assert set().union(*map(uids, scene.api.all(ENDPOINT_SLICES))) == set()


@pytest.mark.parametrize("error", [QUOTA, POLICY], ids=["quota", "policy"])
def test_a_model_whose_endpoints_are_refused_says_so(scene: Scene, error: errors.ApiError):
    scene.budget()
    scene.model("ada")
    scene.leads()
    refuse(scene, ENDPOINT_SLICES, error)
    scene.model("ada", replicas=2)
    scene.budget(replicas=2)
    scene.passes(30)
    status, _, message = scene.said(MODELS, "ada", "Degraded")
    assert status == "True"
    assert error.message in message


def theirs(scene: Scene, resource: Resource, name: str) -> None:
    """Somebody else has made what stands under this name."""
    scene.api.put(resource, {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"selector": {"app": "x"}}})


def test_a_pool_whose_service_is_somebody_else_s_says_so_although_its_workers_are_ready(scene: Scene):
    theirs(scene, SERVICES, f"{BUDGET}-pool")
    scene.budget(serving={"addresses": "pool"})
    scene.model("ada")
    scene.leads()
    assert scene.said(BUDGETS, BUDGET, "WorkersReady")[0] == "True"
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "ServiceConflict")
    assert f"'{BUDGET}-pool' exists and was not made by Ballast" in message
    for type_, wrong in (("Ready", "False"), ("Degraded", "True")):
        status, reason, message = scene.said(MODELS, "ada", type_)
        assert (status, reason) == (wrong, "ServiceConflict")
        assert f"'{BUDGET}-pool'" in message
    scene.api.remove(SERVICES, NAMESPACE, f"{BUDGET}-pool")
    scene.passes(30)
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_model_is_ready_at_the_pool_s_address_whatever_else_of_the_pool_is_in_the_way(scene: Scene):
    theirs(scene, DISRUPTION_BUDGETS, BUDGET)
    scene.budget(serving={"addresses": "pool"})
    scene.model("ada")
    scene.leads()
    assert scene.said(BUDGETS, BUDGET, "Degraded")[:2] == ("True", "ServiceConflict")
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_model_with_an_address_of_its_own_is_ready_beside_a_foreign_pool_service(scene: Scene):
    theirs(scene, SERVICES, f"{BUDGET}-pool")
    scene.budget()
    scene.model("ada")
    scene.leads()
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_pool_without_workers_looks_again_whether_a_name_is_free(scene: Scene):
    theirs(scene, SERVICES, f"{BUDGET}-pool")
    scene.budget(replicas=0)
    scene.leads()
    scene.api.remove(SERVICES, NAMESPACE, f"{BUDGET}-pool")
    scene.passes(30)
    assert scene.get(SERVICES, f"{BUDGET}-pool")["metadata"]["ownerReferences"]
