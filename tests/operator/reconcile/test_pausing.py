# SPDX-License-Identifier: Apache-2.0
"""A pause: nothing is changed while it lasts, and what waits for it says so."""

from __future__ import annotations

import pytest
from helpers.memory_cluster import BUDGET, uids
from helpers.memory_scene import Scene

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import BUDGETS, ENDPOINT_SLICES, MODELS, SERVICES


def told(scene: Scene) -> dict[str, tuple[str, int]]:
    """Source and residency of each model that the only worker was last told to hold."""
    [worker] = scene.cluster.live()
    return {m.name: (m.uri, m.residency) for m in worker.calls("ApplyAssignment")[-1].models}


@pytest.fixture
def paused(scene: Scene) -> Scene:
    """A pool of one worker that serves `ada`, which is then paused."""
    scene.budget()
    scene.model("ada", residency="device")
    scene.leads()
    scene.annotate(MODELS, "ada", paused="true")
    scene.passes(5)
    return scene


AS_IT_WAS = {"ada": ("file:///models/ada", pb.RESIDENCY_DEVICE)}


def test_the_spec_of_a_paused_model_reaches_no_worker_until_it_is_resumed(paused: Scene):
    paused.model("ada", uri="file:///models/other", residency="unpinned")
    paused.passes(20)
    assert told(paused) == AS_IT_WAS
    assert paused.said(MODELS, "ada", "Ready")[0] == "True"
    paused.annotate(MODELS, "ada", paused="false")
    paused.passes(10)
    assert told(paused) == {"ada": ("file:///models/other", pb.RESIDENCY_UNPINNED)}


def test_a_worker_that_holds_a_paused_model_gets_others_under_a_new_leader(paused: Scene):
    paused.leads()
    paused.model("ben")
    paused.passes(30)
    paused.model("ada", uri="file:///models/other")
    paused.passes(20)
    assert set(told(paused)) == {"ada", "ben"}
    assert told(paused)["ada"] == AS_IT_WAS["ada"]
    assert paused.said(MODELS, "ada", "Ready")[0] == "True"
    assert paused.said(MODELS, "ben", "Ready")[0] == "True"


@pytest.mark.parametrize("changes", [0, 1])
def test_a_paused_model_of_which_no_copy_is_wished_any_more_stays(paused: Scene, changes: int):
    paused.model("ada", residency="device", replicas=0)
    paused.passes(20)
    for _ in range(changes):
        paused.leads()
    [worker] = paused.cluster.live()
    assert worker.answers("ada")
    assert set().union(*map(uids, paused.api.all(ENDPOINT_SLICES))) == set(paused.cluster.workers)
    assert paused.said(MODELS, "ada", "Accepted")[:2] == ("True", "Paused")
    assert paused.said(MODELS, "ada", "Ready")[0] == "True"
    paused.annotate(MODELS, "ada", paused="false")
    paused.passes(20)
    assert not worker.answers("ada")
    assert paused.said(MODELS, "ada", "Ready")[:2] == ("False", "NotRequested")


def test_a_new_model_of_a_paused_pool_waits_for_the_pause_to_end(scene: Scene):
    scene.budget()
    scene.leads()
    scene.annotate(BUDGETS, BUDGET, paused="true")
    scene.passes(5)
    scene.model("new")
    scene.passes(20)
    for type_ in ("Placed", "Ready"):
        status, reason, message = scene.said(MODELS, "new", type_)
        assert (status, reason) == ("False", "Paused")
        assert f"WeightBudget '{BUDGET}' is paused" in message
    scene.annotate(BUDGETS, BUDGET, paused="false")
    scene.passes(20)
    assert scene.said(MODELS, "new", "Ready")[0] == "True"


def test_a_new_model_of_a_pool_whose_spec_is_refused_says_why_it_waits(scene: Scene):
    scene.budget()
    scene.model("ada")
    scene.leads()
    scene.budget(device={"budget": "60GB"})
    scene.model("new")
    scene.passes(20)
    status, reason, message = scene.said(MODELS, "new", "Ready")
    assert (status, reason) == ("False", "InvalidSpec")
    assert f"WeightBudget '{BUDGET}'" in message
    assert "60GB" in message
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"
    assert scene.said(MODELS, "ada", "Degraded")[0] == "False"
    scene.budget()
    scene.passes(20)
    assert scene.said(MODELS, "new", "Ready")[0] == "True"


def test_a_model_that_is_paused_before_it_has_a_place_says_so(scene: Scene):
    scene.budget()
    scene.leads()
    scene.model("new", paused=True)
    scene.passes(20)
    status, reason, _ = scene.said(MODELS, "new", "Ready")
    assert (status, reason) == ("False", "Paused")


def test_a_paused_model_whose_service_cannot_be_made_is_not_called_ready(scene: Scene):
    scene.api.admit = lambda resource, _, after: (
        errors.Forbidden("a quota has no Services left", status=403) if resource == SERVICES and after else None
    )
    scene.budget()
    scene.model("ada")
    scene.leads()
    assert scene.said(MODELS, "ada", "Ready")[:2] == ("False", "ServiceConflict")
    scene.annotate(MODELS, "ada", paused="true")
    scene.passes(30)
    status, reason, message = scene.said(MODELS, "ada", "Ready")
    assert (status, reason) == ("False", "ServiceConflict")
    assert "there is no Service 'ada' of this model" in message
    scene.api.admit = lambda *_: None
    scene.annotate(MODELS, "ada", paused="false")
    scene.passes(30)
    assert scene.said(MODELS, "ada", "Ready")[0] == "True"


def test_a_model_that_was_paused_before_it_had_a_place_gets_one_when_it_is_resumed(scene: Scene):
    scene.budget()
    scene.leads()
    scene.model("new", paused=True)
    scene.passes(20)
    scene.annotate(MODELS, "new", paused="false")
    scene.passes(20)
    assert scene.said(MODELS, "new", "Ready")[0] == "True"


def test_a_model_whose_copies_were_changed_while_it_was_paused_has_them_when_it_is_resumed(scene: Scene):
    scene.budget(replicas=2)
    scene.model("ada")
    scene.leads()
    scene.annotate(MODELS, "ada", paused="true")
    scene.passes(5)
    scene.model("ada", replicas=2)
    scene.passes(20)
    assert sum(worker.answers("ada") for worker in scene.cluster.live()) == 1
    scene.annotate(MODELS, "ada", paused="false")
    scene.passes(20)
    assert sum(worker.answers("ada") for worker in scene.cluster.live()) == 2
