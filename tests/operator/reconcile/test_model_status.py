# SPDX-License-Identifier: Apache-2.0
"""What a person reads of a model, for everything that can have happened."""

from __future__ import annotations

import datetime as dt

import pytest
from helpers.reconcile_objects import MIB, Builder

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import InferenceModelStatus
from ballast_operator.reconcile.bundles import Bundle
from ballast_operator.reconcile.conditions import merge
from ballast_operator.reconcile.model_facts import facts
from ballast_operator.reconcile.model_situation import Situation
from ballast_operator.reconcile.model_status import body
from ballast_operator.reconcile.pods import Trouble
from ballast_operator.reconcile.rollout import Rollout
from ballast_operator.reconcile.wishes import Rejection

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def situation(build: Builder, *workers, model=None, **fields) -> Situation:
    uids = [w.uid for w in workers]
    fields.setdefault("targets", [w.name for w in workers])
    fields.setdefault("rollout", Rollout(frozenset(uids), tuple(uids)))
    return Situation(verdict=model or build.model(residency="device"), workers=workers, **fields)


def said(now: Situation, existing=()) -> dict[str, tuple[str, str]]:
    found = facts(now, existing)
    assert tuple(found) == ("Accepted", "Placed", "Loaded", "Ready", "Degraded")
    return {type_: (fact.status, fact.reason.value) for type_, fact in found.items()}


def check(status: dict) -> dict:
    """The status as the API's own model reads it: nothing unknown in it."""
    read = InferenceModelStatus.model_validate(status)
    assert set(status) <= {f.alias or n for n, f in InferenceModelStatus.model_fields.items()}
    return read.model_dump(by_alias=True, exclude_none=True, mode="json") and status


def test_a_loaded_model_is_ready_and_shows_its_worker_and_size(build: Builder):
    now = situation(build, build.worker("a", build.state(weights_bytes=30 * MIB, load_milliseconds=7)))
    assert said(now) == {
        "Accepted": ("True", "Accepted"),
        "Placed": ("True", "Placed"),
        "Loaded": ("True", "Loaded"),
        "Ready": ("True", "Ready"),
        "Degraded": ("False", "AsExpected"),
    }
    status = check(body(now, {}, moment=NOW))
    assert (status["residency"], status["replicas"], status["readyReplicas"]) == ("device", 1, 1)
    assert (status["workerNames"], status["workersTotal"], status["loadMilliseconds"]) == ("a", 1, 7)
    assert status["size"]["weights"] == "30Mi"
    assert status["size"]["measured"] is False
    assert "scratch" not in status["size"]


def test_a_rejected_model_says_the_same_in_every_condition(build: Builder):
    now = Situation(verdict=Rejection(Reason.NAME_CONFLICT, "taken"))
    assert set(said(now).values()) == {("False", "NameConflict"), ("False", "AsExpected")}
    assert body(now, {}, moment=NOW) == {}


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (pb.MODEL_PHASE_PENDING, "Pending"),
        (pb.MODEL_PHASE_BUILDING, "Measuring"),
    ],
)
def test_progress_before_a_call_could_be_answered(build: Builder, phase, reason):
    now = situation(build, build.worker("a", build.state(phase=phase, tier=pb.TIER_NONE, message="3 of 5")))
    found = said(now)
    assert found["Loaded"] == found["Ready"] == ("False", reason)
    assert facts(now, [])["Loaded"].message == "worker a: 3 of 5"


def test_weights_on_their_way_to_the_device_answer_calls_already(build: Builder):
    now = situation(build, build.worker("a", build.state(phase=pb.MODEL_PHASE_LOADING, tier=pb.TIER_HOST)))
    found = said(now)
    assert found["Loaded"] == ("False", "Loading")
    assert found["Ready"] == ("True", "Ready")
    assert body(now, {}, moment=NOW)["residency"] == "host"


def test_an_unpinned_model_is_prepared(build: Builder):
    worker = build.worker("a", build.state(phase=pb.MODEL_PHASE_PREPARED, tier=pb.TIER_NONE))
    now = situation(build, worker, model=build.model())
    assert said(now)["Loaded"] == ("True", "Prepared")
    assert body(now, {}, moment=NOW)["residency"] == "none"


def test_the_worst_tier_of_the_copies_is_shown_and_none_while_one_is_not_known(build: Builder):
    here, there = build.worker("a", build.state()), build.worker("b", build.state(tier=pb.TIER_HOST))
    assert body(situation(build, here, there), {}, moment=NOW)["residency"] == "host"
    silent = build.worker("b", build.state(), heard=0.0)
    assert "residency" not in body(situation(build, here, silent), {}, moment=NOW)


def test_a_failure_names_worker_message_and_exit_code(build: Builder):
    failure = pb.Failure(reason="LoadFailedPermanent", message="out of memory", exit_code=-9)
    now = situation(build, build.worker("a", build.state(phase=pb.MODEL_PHASE_REFUSED, failure=failure)))
    found = said(now)
    assert found["Loaded"] == found["Ready"] == ("False", "LoadFailedPermanent")
    assert found["Degraded"] == ("True", "LoadFailedPermanent")
    assert check(body(now, {}, moment=NOW))["lastFailure"] == {
        "reason": "LoadFailedPermanent",
        "message": "out of memory",
        "worker": "a",
        "exitCode": -9,
        "time": "2026-01-01T12:00:00Z",
    }


def test_the_same_failure_keeps_its_time_and_a_past_one_stays(build: Builder):
    failure = pb.Failure(reason="SourceChanged", message="m")
    now = situation(build, build.worker("a", build.state(failure=failure)))
    first = body(now, {}, moment=NOW)
    later = body(now, first, moment=NOW + dt.timedelta(hours=1))
    assert later["lastFailure"] == first["lastFailure"]
    healed = situation(build, build.worker("a", build.state()))
    assert body(healed, first, moment=NOW)["lastFailure"] == first["lastFailure"]


def test_a_verdict_on_the_assignment_counts_like_a_report(build: Builder):
    refused = {"uid-a": pb.Failure(reason="InsufficientDeviceMemory", message="12 MiB are missing")}
    now = situation(build, build.worker("a"), refused=refused)
    assert said(now)["Ready"] == ("False", "InsufficientDeviceMemory")


def test_a_worker_that_crashed_shows_its_exit_code(build: Builder):
    trouble = Trouble(Reason.WORKER_CRASHED, "pod a: exit code 137 (OOMKilled)", 137)
    now = situation(build, build.worker("a", heard=None, now=200.0, trouble=trouble, ready=False))
    now.workers[0].view.heard_at = 0.0  # nobody has answered for long
    status = body(now, {}, moment=NOW)
    assert status["lastFailure"]["exitCode"] == 137


def test_a_silent_worker_makes_loaded_and_ready_unknown(build: Builder):
    now = situation(build, build.worker("a", build.state(), heard=0.0))
    found = said(now)
    assert found["Loaded"] == found["Ready"] == ("Unknown", "HeartbeatStale")
    assert found["Placed"] == ("True", "Placed")
    status = body(now, {}, moment=NOW)
    assert "readyReplicas" not in status
    assert status["workers"] == [{"name": "a", "node": "node-a"}]


def test_one_silent_copy_of_two_leaves_the_model_ready_and_what_is_known_is_shown(build: Builder):
    now = situation(build, build.worker("a", build.state()), build.worker("b", build.state(), heard=0.0))
    found = said(now)
    assert found["Ready"] == ("True", "Ready")
    assert found["Loaded"] == ("Unknown", "HeartbeatStale")
    assert found["Degraded"] == ("True", "WorkersStarting")


def test_a_new_leader_that_has_not_heard_from_the_workers_leaves_the_conditions_as_they_are(build: Builder):
    existing = merge(
        facts(situation(build, build.worker("a", build.state())), []), [], generation=1, now=NOW - dt.timedelta(days=1)
    )
    awaited = situation(build, build.worker("a", heard=None))
    found = said(awaited, existing)
    assert (found["Loaded"], found["Ready"]) == (("True", "Loaded"), ("True", "Ready"))
    kept = {"residency": "device", "readyReplicas": 1, "size": {"weights": "1Mi"}, "workers": [], "workersTotal": 1}
    assert {k: v for k, v in body(awaited, kept, moment=NOW).items() if k in kept} == kept
    assert said(awaited)["Ready"] == ("Unknown", "Unknown")


def test_nothing_placed_says_why(build: Builder):
    now = situation(build, obstacle=Rejection(Reason.INSUFFICIENT_DEVICE_MEMORY, "1 GiB is missing"))
    found = said(now)
    assert found["Placed"] == found["Loaded"] == found["Ready"] == ("False", "InsufficientDeviceMemory")
    assert said(situation(build))["Placed"] == ("False", "WorkersStarting")


def test_fewer_workers_than_wanted_is_degraded_and_ready(build: Builder):
    worker = build.worker("a", build.state())
    now = situation(build, worker, obstacle=Rejection(Reason.INSUFFICIENT_DEVICE_MEMORY, "1 of 2 copies have a worker"))
    found = said(now)
    assert found["Placed"] == ("False", "InsufficientDeviceMemory")
    assert found["Ready"] == ("True", "Ready")
    assert found["Degraded"] == ("True", "InsufficientDeviceMemory")


def test_a_model_on_its_old_worker_is_ready_while_the_new_one_loads(build: Builder):
    old, new = build.worker("old", build.state()), build.worker("new", build.state(phase=pb.MODEL_PHASE_BUILDING))
    now = situation(build, old, new, targets=["new"], rollout=Rollout(frozenset({"uid-old", "uid-new"}), ("uid-old",)))
    found = said(now)
    assert found["Ready"] == ("True", "Ready")
    assert found["Loaded"] == ("False", "Measuring")
    assert body(now, {}, moment=NOW)["workersTotal"] == 2


def test_a_model_of_which_no_copy_is_wanted_is_not_ready_because_nobody_asked(build: Builder):
    now = situation(build, model=build.model(replicas=0))
    assert said(now)["Ready"] == ("False", "NotRequested")


def test_a_pool_scaled_to_nothing_is_not_asked_for_copies_and_answers_until_its_workers_have_ended(build: Builder):
    nothing = Rejection(Reason.NOT_REQUESTED, "spec.workers.replicas of WeightBudget 'default' is 0")
    found = said(situation(build, build.worker("a", build.state(), terminating=True), obstacle=nothing))
    assert (found["Placed"], found["Ready"]) == (("False", "NotRequested"), ("True", "Ready"))
    assert found["Degraded"] == ("False", "AsExpected")
    found = said(situation(build, obstacle=nothing))
    assert found["Placed"] == found["Loaded"] == found["Ready"] == ("False", "NotRequested")


def test_a_foreign_service_is_no_ready_model_and_shows_the_pool_s_address(build: Builder):
    now = situation(build, build.worker("a", build.state()), conflict="Service 'minilm' exists")
    found = said(now)
    assert found["Ready"] == ("False", "ServiceConflict")
    assert found["Degraded"] == ("True", "ServiceConflict")
    assert body(now, {}, moment=NOW)["address"]["http"] == "http://default-pool.ns.svc:8000"


def test_a_pod_that_is_not_ready_makes_no_ready_model(build: Builder):
    now = situation(build, build.worker("a", build.state(), ready=False))
    assert said(now)["Ready"] == ("False", "WorkersStarting")
    assert facts(now, [])["Ready"].message == "pod a is not Ready"


def test_a_refused_plan_is_the_cause(build: Builder):
    failure = pb.Failure(reason="PlanRefused", message="set device.budget to 2Gi")
    worker = build.worker("a", phase=pb.WORKER_PHASE_REFUSED)
    worker.view.condition.failure.CopyFrom(failure)
    now = situation(build, worker)
    assert said(now)["Ready"] == ("False", "PlanRefused")
    assert "set device.budget to 2Gi" in facts(now, [])["Ready"].message


def test_a_paused_model_says_so_and_what_is(build: Builder):
    now = situation(build, build.worker("a", build.state()), paused=True)
    assert said(now)["Accepted"] == ("True", "Paused")
    assert said(now)["Ready"] == ("True", "Ready")


def test_dropped_fields_win_in_degraded(build: Builder):
    now = situation(build, build.worker("a", build.state()), unknown_fields=["unknown key 'spec.x'"])
    assert said(now)["Degraded"] == ("True", "UnknownField")


def test_a_source_that_has_gone_under_a_served_model_is_degraded(build: Builder):
    broken = Bundle(rejection=Rejection(Reason.SOURCE_NOT_FOUND, "gone"))
    now = situation(build, build.worker("a", build.state()), bundle=broken)
    assert said(now)["Degraded"] == ("True", "SourceNotFound")
    assert said(now)["Ready"] == ("True", "Ready")


def test_at_most_32_workers_are_listed_and_all_are_counted(build: Builder):
    workers = [build.worker(f"w{n:02}", build.state()) for n in range(40)]
    status = check(body(situation(build, *workers), {}, moment=NOW))
    assert len(status["workers"]) == 32
    assert status["workersTotal"] == 40


def test_the_headers_give_the_size_before_anything_is_loaded(build: Builder):
    now = situation(build, bundle=Bundle(30 * MIB, 10 * MIB))
    assert body(now, {}, moment=NOW)["size"] == {"weights": "30Mi", "largestTensor": "10Mi", "measured": False}


def test_a_crashed_container_is_told_although_its_worker_once_reported(build: Builder):
    """Known and silent, but the kubelet says why."""
    trouble = Trouble(Reason.WORKER_CRASHED, "pod a: exit code 137 (OOMKilled)", 137)
    now = situation(build, build.worker("a", build.state(), heard=0.0, ready=False, trouble=trouble))
    found = said(now)
    assert found["Loaded"] == found["Ready"] == ("False", "WorkerCrashed")
    status = body(now, {}, moment=NOW)
    assert status["readyReplicas"] == 0
    assert status["lastFailure"]["exitCode"] == 137
    assert "residency" not in status


def test_a_pod_that_is_not_ready_is_not_waited_for_by_a_new_leader(build: Builder):
    """Operator and workers died together."""
    good = merge(facts(situation(build, build.worker("a", build.state())), []), [], generation=1, now=NOW)
    dead = situation(build, build.worker("a", heard=None, ready=False))
    assert said(dead, good)["Ready"] == ("False", "WorkersStarting")
