# SPDX-License-Identifier: Apache-2.0
"""Thousands of models that fail cost what thousands of models cost: nothing walks over all of them at each event."""

from __future__ import annotations

import logging
import random

import grpc
import pytest
from helpers.running_worker import assigned

from ballast_contract.config import MAX_MODELS
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import assignment
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError
from ballast_worker.control.census import Census
from ballast_worker.control.complaints import Complaints
from ballast_worker.control.models import Failure, ModelView, Stage
from ballast_worker.control.retries import Retries
from ballast_worker.control.standalone import Folder

MISSING = Failure(Reason.SOURCE_NOT_FOUND, "nothing is there")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(5))
def test_what_is_counted_is_what_a_walk_would_find(seed):
    chance, census, views = random.Random(seed), Census(), {}
    for _ in range(2000):
        name = f"m{chance.randrange(20)}"
        after = (
            ModelView(AssignedModel(name, "file:///m"), chance.choice(list(Stage))) if chance.random() < 0.8 else None
        )
        census.moved(views.pop(name, None), after)
        if after is not None:
            views[name] = after
        stages = [view.stage for view in views.values()]
        assert census.models == len(stages)
        assert census.under_way == sum(stage in (Stage.PENDING, Stage.BUILDING) for stage in stages)
        assert census.waiting == stages.count(Stage.BUILT)


def test_a_failure_that_repeats_is_said_once_a_minute_and_another_one_at_once():
    clock = Clock()
    complaints = Complaints(clock)
    assert complaints.worth("m", MISSING)
    clock.now = 59.0
    assert not complaints.worth("m", MISSING)
    assert complaints.worth("other", MISSING)
    assert complaints.worth("m", Failure(Reason.BUNDLE_INVALID, "half of it is there"))
    clock.now = 119.0
    assert complaints.worth("m", Failure(Reason.BUNDLE_INVALID, "half of it is there"))
    complaints.forget("m")
    assert complaints.worth("m", Failure(Reason.BUNDLE_INVALID, "half of it is there"))


def test_a_model_that_is_tried_again_within_a_minute_is_refused_in_one_line(config_for, start, caplog, tmp_path):
    caplog.set_level(logging.WARNING)
    running = start(config_for(managed=True))
    running.assign(pb.AssignedModel(name="m", uri=f"file://{tmp_path}/no", residency=pb.RESIDENCY_UNPINNED))
    running.until(lambda state: any(model.message == "trying again" for model in state.models))
    running.until_model("m", pb.MODEL_PHASE_REFUSED)
    assert sum(getattr(record, "event", "") == "model.refused" for record in caplog.records) == 1


def test_what_was_planned_for_an_earlier_failure_is_not_due_twice():
    clock = Clock()
    retries = Retries(clock)
    retries.failed("m")
    retries.forget("m")
    retries.failed("m")
    retries.soon("other")
    clock.now = 1.0
    assert sorted(retries.due()) == ["m", "other"]
    assert retries.due() == []
    retries.failed("m")
    retries.failed("m")
    clock.now = 3.0
    assert retries.due() == []
    clock.now = 5.0
    assert retries.due() == ["m"]


def test_more_models_than_a_worker_takes_are_refused_as_a_whole(config_for, start, small_bundle):
    many = [pb.AssignedModel(name=f"m{i}", uri="file:///m") for i in range(MAX_MODELS + 1)]
    with pytest.raises(AssignmentError, match=f"{MAX_MODELS + 1} models are more than the {MAX_MODELS}"):
        Assignment().accept(pb.ApplyAssignmentRequest(models=many))
    running = start(config_for(managed=True))
    with pytest.raises(grpc.RpcError, match=f"more than the {MAX_MODELS}") as caught:
        running.assign(*many)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    running.assign(assigned(small_bundle, "m"))


def test_a_folder_of_more_models_than_a_worker_takes_is_refused(config_for, monkeypatch):
    monkeypatch.setattr(assignment, "MAX_MODELS", 1)
    entries = [{"name": name, "uri": "file:///m"} for name in "ab"]
    assert len(Folder(config_for(models=entries[:1])).scan()) == 1
    with pytest.raises(AssignmentError, match="2 models are more than the 1 "):
        Folder(config_for(models=entries)).scan()
