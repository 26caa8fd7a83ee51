# SPDX-License-Identifier: Apache-2.0
"""Make before break, one moment at a time."""

from __future__ import annotations

import pytest
from helpers.reconcile_objects import Builder

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile.rollout import roll

TIMES = {"now": 100.0, "drain_seconds": 5.0}


@pytest.fixture
def model(build: Builder):
    return build.model("minilm", residency="device")


def test_until_the_new_worker_is_ready_the_old_one_holds_and_serves(build: Builder, model):
    old, new = build.worker("old", build.state()), build.worker("new")
    found = roll(model, [old, new], targets=["new"], holders=["uid-old"], exposed=["uid-old"], since={}, **TIMES)
    assert found.hold == {"uid-old", "uid-new"}
    assert found.serve == ("uid-old",)
    assert not found.moved


def test_while_the_pod_of_the_new_worker_is_not_ready_the_old_one_serves_on(build: Builder, model):
    """It would get no endpoint: calls would have nowhere to go."""
    old, new = build.worker("old", build.state()), build.worker("new", build.state(), ready=False)
    found = roll(model, [old, new], targets=["new"], holders=["uid-old"], exposed=["uid-old"], since={}, **TIMES)
    assert not found.moved
    assert "uid-old" in found.serve


def test_a_new_worker_with_the_weights_on_the_wrong_tier_is_not_ready(build: Builder, model):
    old = build.worker("old", build.state())
    new = build.worker("new", build.state(phase=pb.MODEL_PHASE_PREPARED, tier=pb.TIER_HOST))
    found = roll(model, [old, new], targets=["new"], holders=["uid-old"], exposed=[], since={}, **TIMES)
    assert not found.moved
    assert set(found.serve) == {"uid-old", "uid-new"}


def test_when_the_new_worker_is_ready_calls_go_there_and_the_old_one_waits_for_its_endpoint_to_go(
    build: Builder, model
):
    old, new = build.worker("old", build.state()), build.worker("new", build.state())
    first = roll(model, [old, new], targets=["new"], holders=["uid-old"], exposed=["uid-old"], since={}, **TIMES)
    assert first.moved
    assert first.serve == ("uid-new",)
    assert first.hold == {"uid-old", "uid-new"}
    later = roll(
        model,
        [old, new],
        targets=["new"],
        holders=first.hold,
        exposed=["uid-old"],
        since=first.since,
        now=1000.0,
        drain_seconds=5.0,
    )
    assert later.hold == first.hold  # the endpoint is still there: the time has not begun


def test_the_old_worker_drops_the_model_after_the_drain_and_not_before(build: Builder, model):
    old, new = build.worker("old", build.state()), build.worker("new", build.state())
    arguments = {"targets": ["new"], "holders": ["uid-old", "uid-new"], "exposed": ["uid-new"]}
    begun = roll(model, [old, new], since={}, **arguments, **TIMES)
    assert begun.hold == {"uid-old", "uid-new"}
    assert begun.since == {"uid-old": 100.0}
    waiting = roll(model, [old, new], since=begun.since, **arguments, now=104.9, drain_seconds=5.0)
    assert "uid-old" in waiting.hold
    done = roll(model, [old, new], since=waiting.since, **arguments, now=105.0, drain_seconds=5.0)
    assert done.hold == {"uid-new"}
    assert done.since == {}


def test_a_worker_with_calls_in_its_queue_keeps_the_model(build: Builder, model):
    old, new = build.worker("old", build.state(queue_depth=3)), build.worker("new", build.state())
    found = roll(
        model,
        [old, new],
        targets=["new"],
        holders=["uid-old"],
        exposed=[],
        since={"uid-old": 0.0},
        **TIMES,
    )
    assert "uid-old" in found.hold


def test_a_worker_that_no_longer_answers_keeps_nothing(build: Builder, model):
    old = build.worker("old", build.state(phase=pb.MODEL_PHASE_REFUSED))
    new = build.worker("new")
    found = roll(model, [old, new], targets=["new"], holders=["uid-old"], exposed=[], since={}, **TIMES)
    assert found.hold == {"uid-new"}
    assert found.serve == ()


def test_a_silent_worker_keeps_model_and_calls_while_nothing_else_is_ready(build: Builder, model):
    silent = build.worker("silent", build.state(), heard=0.0)
    found = roll(model, [silent], targets=["silent"], holders=["uid-silent"], exposed=[], since={}, **TIMES)
    assert found.serve == ("uid-silent",)
    assert found.hold == {"uid-silent"}
    assert not found.moved


def test_no_copies_wanted_means_no_worker_holds_anything(build: Builder):
    model = build.model("minilm", replicas=0)
    worker = build.worker("w", build.state())
    found = roll(model, [worker], targets=["w"], holders=["uid-w"], exposed=["uid-w"], since={}, **TIMES)
    assert (found.hold, found.serve) == (frozenset(), ())


def test_an_unpinned_model_has_moved_when_it_is_prepared(build: Builder):
    model = build.model("minilm")
    new = build.worker("new", build.state(phase=pb.MODEL_PHASE_PREPARED, tier=pb.TIER_NONE))
    assert roll(model, [new], targets=["new"], holders=[], exposed=[], since={}, **TIMES).moved


def test_a_namesake_of_another_object_does_not_count(build: Builder):
    model = build.model("minilm", modelName="shared")
    worker = build.worker("w", build.state("other", served="shared"))
    found = roll(model, [worker], targets=["w"], holders=[], exposed=[], since={}, **TIMES)
    assert found.serve == ()


def test_all_copies_have_to_be_ready_before_the_old_ones_go(build: Builder):
    model = build.model("minilm", replicas=2)
    old, one, two = build.worker("old", build.state()), build.worker("one", build.state()), build.worker("two")
    found = roll(model, [old, one, two], targets=["one", "two"], holders=["uid-old"], exposed=[], since={}, **TIMES)
    assert found.serve == ("uid-old", "uid-one")
    assert found.hold == {"uid-old", "uid-one", "uid-two"}


def test_a_finished_pod_is_no_worker_any_more(build: Builder, model):
    gone = build.worker("gone", build.state(), finished=True, ready=False)
    found = roll(model, [gone], targets=["gone"], holders=["uid-gone"], exposed=[], since={}, **TIMES)
    assert (found.hold, found.serve) == (frozenset(), ())


def test_a_paused_model_stays_on_its_workers_although_no_copy_is_wished(build: Builder):
    gone = build.model("minilm", replicas=0)
    worker = build.worker("a", build.state())
    where = {"targets": ["a"], "holders": ["uid-a"], "exposed": ["uid-a"], "since": {}}
    assert roll(gone, [worker], **where, **TIMES).hold == frozenset()
    kept = roll(gone, [worker], **where, **TIMES, frozen=True)
    assert (kept.hold, kept.serve) == ({"uid-a"}, ("uid-a",))
