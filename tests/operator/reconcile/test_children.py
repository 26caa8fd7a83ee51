# SPDX-License-Identifier: Apache-2.0
"""What stands where the children of a pool and of its models should."""

from __future__ import annotations

from helpers.memory_cluster import BUDGET, NAMESPACE
from helpers.memory_scene import Scene

from ballast_operator.cluster.resources import BUDGETS, DISRUPTION_BUDGETS, MODELS, SERVICES, Resource


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
