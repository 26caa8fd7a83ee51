# SPDX-License-Identifier: Apache-2.0
"""A new model gets its first status when something can be said that lasts, or after some seconds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from helpers.reconcile_objects import Builder

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile.silence import FIRST_SECONDS, silence
from ballast_operator.reconcile.wishes import Model, Rejection, judge_model

CREATED = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Scene:
    """A model that was created a second ago, is wanted on one worker, and of which that worker has said nothing."""

    def __init__(self, build: Builder, **spec: Any) -> None:
        self.obj = build.model_object(**spec)
        verdict = judge_model(self.obj, budget=build.budget_object(), namesakes=[self.obj])
        assert isinstance(verdict, Model)
        self.model = verdict
        self.known: dict[str, Any] = {
            "placeable": True,
            "obstacle": None,
            "workers": [build.worker("a")],
            "refused": False,
            "now": CREATED + dt.timedelta(seconds=1),
        }

    def wait(self, **changes: Any) -> float | None:
        return silence(self.obj, self.model, **self.known | changes)


def test_nothing_is_said_of_a_new_model_while_it_is_placed_and_told(build: Builder):
    scene = Scene(build)
    assert scene.wait() == FIRST_SECONDS - 1
    assert scene.wait(workers=[]) == FIRST_SECONDS - 1
    assert scene.wait(obstacle=Rejection(Reason.PENDING, "headers are read")) == FIRST_SECONDS - 1


@pytest.mark.parametrize(
    "known",
    [
        {"placeable": False},
        {"refused": True},
        {"obstacle": Rejection(Reason.INSUFFICIENT_DEVICE_MEMORY, "no room")},
        {"now": CREATED + dt.timedelta(seconds=FIRST_SECONDS)},
        {"now": CREATED - dt.timedelta(hours=1)},
    ],
)
def test_what_lasts_is_said_at_once(build: Builder, known: dict[str, Any]):
    assert Scene(build).wait(**known) is None


def test_what_a_worker_says_of_it_is_said_at_once(build: Builder):
    building = build.worker("a", build.state(phase=pb.MODEL_PHASE_BUILDING, tier=pb.TIER_NONE))
    assert Scene(build).wait(workers=[building]) is None


def test_a_model_that_nobody_wants_served_or_that_is_paused_is_not_waited_for(build: Builder):
    assert Scene(build, replicas=0).wait() is None
    scene = Scene(build)
    scene.obj["metadata"]["annotations"] = {names.ANNOTATION_PAUSED: "true"}
    assert scene.wait() is None


def test_a_model_that_has_a_status_is_never_passed_over(build: Builder):
    scene = Scene(build)
    scene.obj["status"] = {"assignment": {"workers": ["a"], "generation": 1}}
    assert scene.wait() is not None
    scene.obj["status"]["conditions"] = [{"type": "Accepted", "status": "True"}]
    assert scene.wait() is None
