# SPDX-License-Identifier: Apache-2.0
"""The stream of states: full first, then numbered changes, and a resume where the sequence is still known."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.feed import Feed
from ballast_worker.control.models import ModelView, Stage
from ballast_worker.control.report import Condition, Phase, WorkerView, difference, worker_state
from ballast_worker.device.budget import Budget
from ballast_worker.device.plan import PlanInputs, make_plan


class Holder:
    """A worker's view that a test changes, and the feed that tells of it."""

    def __init__(self):
        self.view = WorkerView(name="w", backend="cpu", condition=Condition(), models={})
        self.feed = Feed(lambda: worker_state(self.view), lambda: 7)

    def set(self, **fields):
        self.view = replace(self.view, **fields)
        self.feed.publish()

    def watch(self, instance_id="", sequence=0, heartbeat_seconds=0.0):
        return self.feed.watch(
            instance_id=instance_id, sequence=sequence, active=lambda: True, heartbeat_seconds=heartbeat_seconds
        )


@pytest.fixture
def holder():
    return Holder()


def model(name, stage=Stage.PENDING):
    return ModelView(spec=AssignedModel(name=name, uri=f"file:///{name}"), stage=stage)


def test_a_new_watcher_gets_the_full_state_and_then_heartbeats(holder):
    first, second = islice(holder.watch(), 2)
    assert first.WhichOneof("event") == "full"
    assert first.full.name == "w"
    assert first.epoch == 7
    assert second.WhichOneof("event") == "heartbeat"
    assert second.sequence == first.sequence


def test_changes_follow_one_another_without_gaps(holder):
    stream = holder.watch()
    start = next(stream).sequence
    holder.set(models={"a": model("a")})
    holder.set(models={"a": model("a", Stage.BUILDING), "b": model("b")})
    holder.set(models={"b": model("b")}, condition=Condition(Phase.READY), generation=3)
    one, two, three = islice(stream, 3)
    assert [m.sequence for m in (one, two, three)] == [start + 1, start + 2, start + 3]
    assert [m.name for m in one.change.models] == ["a"]
    assert [m.phase for m in two.change.models] == [pb.MODEL_PHASE_BUILDING, pb.MODEL_PHASE_PENDING]
    assert list(three.change.removed) == ["a"]
    assert three.change.condition.phase == pb.WORKER_PHASE_READY
    assert three.change.assignment_generation == 3
    assert not three.change.models


def test_nothing_is_said_when_nothing_changed(holder):
    start = next(holder.watch()).sequence
    holder.set(models={})
    assert next(holder.watch()).sequence == start


def test_a_watcher_resumes_where_it_stopped(holder):
    first = next(holder.watch())
    holder.set(models={"a": model("a")})
    resumed = next(holder.watch(first.instance_id, first.sequence))
    assert resumed.WhichOneof("event") == "change"
    assert resumed.sequence == first.sequence + 1


def test_a_watcher_that_is_up_to_date_resumes_with_a_heartbeat(holder):
    first = next(holder.watch())
    assert next(holder.watch(first.instance_id, first.sequence)).WhichOneof("event") == "heartbeat"


@pytest.mark.parametrize("sequence", [0, 999])
def test_a_sequence_that_is_not_known_gets_a_full_state(holder, sequence):
    holder.set(models={"a": model("a")})
    assert next(holder.watch(holder.feed.instance_id, sequence)).WhichOneof("event") == "full"


def test_another_instance_gets_a_full_state(holder):
    first = next(holder.watch())
    assert next(holder.watch("another", first.sequence)).WhichOneof("event") == "full"


def test_a_watcher_that_fell_behind_what_is_kept_gets_a_full_state(holder):
    stream = holder.watch()
    next(stream)
    for index in range(300):
        holder.set(generation=index + 1)
    message = next(stream)
    assert message.WhichOneof("event") == "full"
    assert message.full.assignment_generation == 300


def test_a_plan_is_told_by_a_full_state(holder):
    stream = holder.watch()
    next(stream)
    budget = Budget(100, "configured", "100")
    refused = make_plan(PlanInputs(budget=budget, context=0, code=0, scratch=150, models=()))
    holder.set(plan=refused)
    message = next(stream)
    assert message.WhichOneof("event") == "full"
    assert message.full.plan.shortfall_bytes == refused.shortfall > 0


def test_closing_ends_the_streams(holder):
    stream = holder.watch(heartbeat_seconds=60.0)
    next(stream)
    holder.feed.close()
    assert list(stream) == []


def test_a_watcher_that_is_gone_ends_its_stream(holder):
    assert list(holder.feed.watch(instance_id="", sequence=0, active=lambda: False)) == []


def test_what_was_applied_one_by_one_equals_the_last_full_state(holder):
    """A client that applies every change ends where a full state would have put it."""
    stream = holder.watch()
    mirror = pb.WorkerState()
    mirror.CopyFrom(next(stream).full)
    states = [{"a": model("a")}, {"a": model("a", Stage.SERVED), "b": model("b")}, {"b": model("b")}, {}]
    for models in states:
        holder.set(models=models)
        change = next(stream).change
        held = {m.name: m for m in mirror.models}
        held |= {m.name: m for m in change.models}
        for name in change.removed:
            del held[name]
        mirror.ClearField("models")
        mirror.models.extend(held[name] for name in sorted(held))
        assert difference(mirror, worker_state(holder.view)) is None


def test_a_model_that_cannot_be_told_does_not_silence_the_others(holder, caplog):
    stream = holder.watch()
    next(stream)
    broken = replace(model("broken"), message="\udcff")
    holder.set(models={"a": model("a"), "b\udcff": model("b\udcff"), "broken": broken})
    assert [m.name for m in next(stream).change.models] == ["a"]
    assert "the state of model 'b\\udcff' cannot be told and is left out" in caplog.text
    holder.set(models={"a": model("a"), "broken": model("broken")})
    assert [m.name for m in next(stream).change.models] == ["broken"]
