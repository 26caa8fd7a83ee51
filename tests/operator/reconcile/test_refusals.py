# SPDX-License-Identifier: Apache-2.0
"""What the API server does not let go, take over or show of a pool and its models stands in the way of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.memory_cluster import BUDGET, NAMESPACE
from helpers.memory_scene import Scene

from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    MODELS,
    PODS,
    SERVICES,
    Resource,
)
from ballast_operator.reconcile import stores

REFUSALS = [
    errors.Forbidden("a role lacks this right", status=403),
    errors.Invalid("a policy finds it invalid", status=422),
    errors.from_answer(413, {"message": "a policy finds it too large"}),
]
FORBIDDEN = REFUSALS[0]


def keep(scene: Scene, kind: Resource, error: errors.ApiError) -> None:
    """From now on nothing of a kind goes."""
    scene.api.admit = lambda resource, _, after: error if resource == kind and after is None else None


@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: str(e.status))
@pytest.mark.parametrize("kind", [SERVICES, ENDPOINT_SLICES], ids=lambda kind: kind.plural)
def test_a_model_whose_own_address_may_not_go_is_ready_at_the_pool_s_and_says_what_is_left(
    scene: Scene, kind: Resource, error: errors.ApiError
):
    scene.budget()
    scene.model("ada")
    scene.leads()
    keep(scene, kind, error)
    scene.budget(serving={"addresses": "pool"})
    scene.passes(60)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    status, reason, message = scene.said(MODELS, "ada", "Degraded")
    assert (status, reason) == ("True", "ServiceConflict")
    assert f"refuses to delete {kind.kind} 'ada" in message
    assert error.message in message
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"
    assert scene.runs("model/ns/ada") < 30
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.said(MODELS, "ada", "Degraded")[0] == "False"
    assert [s["metadata"]["name"] for s in scene.api.all(SERVICES) if "ada" in s["metadata"]["name"]] == []
    assert scene.api.all(ENDPOINT_SLICES) == []


@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: str(e.status))
def test_a_model_whose_endpoints_may_not_go_says_so_when_it_is_refused_or_asked_for_no_more(
    scene: Scene, error: errors.ApiError
):
    scene.budget()
    scene.model("ada")
    scene.model("ben")
    scene.leads()
    keep(scene, ENDPOINT_SLICES, error)
    scene.model("ada", replicas=0)
    scene.model("ben", budgetRef={"name": "nowhere"})
    scene.passes(30)
    assert scene.said(MODELS, "ada", "Ready")[:2] == ("False", "NotRequested")
    assert scene.said(MODELS, "ben", "Ready")[:2] == ("False", "BudgetNotFound")
    for name in ("ada", "ben"):
        status, reason, message = scene.said(MODELS, name, "Degraded")
        assert (status, reason) == ("True", "ServiceConflict")
        assert error.message in message
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.api.all(ENDPOINT_SLICES) == []
    assert scene.said(MODELS, "ada", "Degraded")[0] == "False"
    assert scene.said(MODELS, "ben", "Degraded")[0] == "False"


def test_a_pool_goes_on_where_a_configuration_that_nobody_uses_may_not_go(scene: Scene):
    scene.budget()
    scene.model("ada")
    scene.leads()
    keep(scene, CONFIG_MAPS, FORBIDDEN)
    scene.budget(device={"scratch": "64Mi"})
    scene.passes(60)
    scene.model("ben")
    scene.passes(30)
    assert scene.said(BUDGETS, BUDGET, "UpToDate")[0] == "True"
    assert scene.said(MODELS, "ben", "Ready")[0] == "True"
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "ConfigMapConflict")
    assert FORBIDDEN.message in message
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_a_pool_whose_pods_may_not_go_says_so_and_goes_on(scene: Scene):
    scene.budget(replicas=2)
    scene.leads()
    keep(scene, PODS, FORBIDDEN)
    scene.budget(replicas=1)
    scene.model("ada")
    scene.passes(60)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    status, reason, message = scene.said(BUDGETS, BUDGET, "Degraded")
    assert (status, reason) == ("True", "PodsForbidden")
    assert FORBIDDEN.message in message
    assert all(event["reason"] != "WorkerDeleted" for event in scene.api.events)
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert len(scene.api.all(PODS)) == 1
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_a_pod_that_ended_and_may_not_go_is_told_and_not_replaced_by_ever_more(scene: Scene):
    scene.cluster.kubelets_look = False
    scene.budget()
    scene.leads()
    keep(scene, PODS, FORBIDDEN)
    [pod] = scene.api.all(PODS)
    scene.api.set_status(PODS, NAMESPACE, pod["metadata"]["name"], {"phase": "Failed", "conditions": []})
    scene.passes(60)
    assert len(scene.api.all(PODS)) == 1
    assert scene.said(BUDGETS, BUDGET, "WorkersReady")[:2] == ("False", "PodsForbidden")
    assert scene.runs("budget/ns/default") < 30
    scene.api.admit = lambda *_: None
    scene.passes(60)
    [other] = scene.api.all(PODS)
    assert other["metadata"]["uid"] != pod["metadata"]["uid"]
    assert scene.said(BUDGETS, BUDGET, "WorkersReady")[0] == "True"


def test_no_model_goes_back_to_a_worker_that_is_to_go_and_may_not(scene: Scene):
    scene.budget(replicas=2)
    scene.model("ada", coverage="allWorkers")
    scene.leads()
    keep(scene, PODS, FORBIDDEN)
    scene.budget(replicas=1)
    scene.passes(60)
    assigned = scene.get(MODELS, "ada")["status"]["assignment"]
    scene.passes(60)
    assert len(assigned["workers"]) == 1
    assert scene.get(MODELS, "ada")["status"]["assignment"] == assigned


def test_workers_of_a_deleted_pool_are_told_although_their_pods_may_not_go(scene: Scene):
    scene.budget(replicas=2)
    scene.leads()
    keep(scene, PODS, FORBIDDEN)
    scene.api.end(BUDGETS, NAMESPACE, BUDGET)
    scene.passes(10)
    assert all("Release" in dict(worker.log) for worker in scene.cluster.live())
    told = [event["note"] for event in scene.api.events if event["reason"] == "PodsForbidden"]
    assert len(told) == len(scene.cluster.live()) == 2
    assert all(FORBIDDEN.message in note for note in told)


def test_a_claim_that_may_not_be_read_keeps_no_model_from_its_worker(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    get = scene.api.get

    async def forbid(resource: Resource, namespace: str | None, name: str) -> Any:
        if resource == CLAIMS:
            asked.append(name)
            raise FORBIDDEN
        return await get(resource, namespace, name)

    monkeypatch.setattr(stores, "suspects", lambda *_, **__: True)
    monkeypatch.setattr(scene.api, "get", forbid)
    scene.budget(modelStores=[{"persistentVolumeClaim": {"claimName": "models"}}])
    scene.model("ada")
    scene.leads()
    assert "models" in asked
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: str(e.status))
def test_a_model_whose_assignment_may_not_be_written_is_told_and_keeps_no_other_from_its_worker(
    scene: Scene, error: errors.ApiError
):
    def admit(resource: Resource, _: Any, after: Any) -> errors.ApiError | None:
        ours = resource == MODELS and after is not None and after["metadata"]["name"] == "ada"
        return error if ours and "assignment" in after.get("status", {}) else None

    scene.api.admit = admit
    scene.budget()
    scene.model("ada")
    scene.model("ben")
    scene.leads()
    scene.passes(60)
    assert scene.said(MODELS, "ben", "Ready")[0] == "True"
    assert scene.said(MODELS, "ada", "Placed")[:2] == ("False", "WriteRefused")
    for resource, name, type_ in ((MODELS, "ada", "Ready"), (BUDGETS, BUDGET, "Degraded")):
        _, reason, message = scene.said(resource, name, type_)
        assert reason == "WriteRefused"
        assert "refuses status.assignment of InferenceModel 'ada'" in message
        assert error.message in message
    assert scene.runs("budget/ns/default") < 40
    told = [event["regarding"]["name"] for event in scene.api.events if event["reason"] == "WriteRefused"]
    assert told == [BUDGET]
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert scene.said(BUDGETS, BUDGET, "Degraded")[0] == "False"


def test_a_model_whose_move_may_not_be_written_serves_where_it_is(scene: Scene):
    scene.budget(replicas=2)
    scene.model("ada")
    scene.leads()
    assigned = scene.get(MODELS, "ada")["status"]["assignment"]["workers"]
    scene.api.admit = lambda resource, _, after: (
        FORBIDDEN if resource == MODELS and "assignment" in (after or {}).get("status", {}) else None
    )
    scene.model("ada", replicas=2)
    scene.passes(60)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert scene.said(MODELS, "ada", "Degraded")[:2] == ("True", "WriteRefused")
    assert scene.get(MODELS, "ada")["status"]["assignment"]["workers"] == assigned
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert len(scene.get(MODELS, "ada")["status"]["assignment"]["workers"]) == 2
    assert scene.said(MODELS, "ada", "Degraded")[0] == "False"


@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: str(e.status))
def test_a_budget_that_may_not_get_our_finalizer_says_so_and_nothing_is_made_for_it(
    scene: Scene, error: errors.ApiError
):
    def admit(resource: Resource, before: Any, after: Any) -> errors.ApiError | None:
        if resource != BUDGETS or before is None or after is None or "finalizers" not in after["metadata"]:
            return None
        return error

    scene.api.admit = admit
    scene.budget()
    scene.model("ada")
    scene.leads()
    scene.passes(30)
    assert scene.api.all(PODS) == []
    status, reason, message = scene.said(BUDGETS, BUDGET, "Accepted")
    assert (status, reason) == ("False", "WriteRefused")
    assert error.message in message
    assert scene.said(MODELS, "ada", "Ready")[:2] == ("False", "WriteRefused")
    assert scene.runs("budget/ns/default") < 20
    scene.api.admit = lambda *_: None
    scene.passes(60)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_deleted_budget_whose_finalizer_may_not_go_says_so_and_ends_when_it_may(scene: Scene):
    scene.budget()
    scene.leads()
    scene.api.admit = lambda resource, _, after: (
        FORBIDDEN if resource == BUDGETS and after is not None and after["metadata"].get("finalizers") == [] else None
    )
    scene.api.end(BUDGETS, NAMESPACE, BUDGET)
    scene.passes(60)
    told = [event["note"] for event in scene.api.events if event["reason"] == "WriteRefused"]
    assert told
    assert FORBIDDEN.message in told[0]
    scene.api.admit = lambda *_: None
    scene.passes(30)
    assert scene.api.all(BUDGETS) == []
