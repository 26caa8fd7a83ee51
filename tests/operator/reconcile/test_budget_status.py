# SPDX-License-Identifier: Apache-2.0
"""What a person reads of a budget."""

from __future__ import annotations

import datetime as dt

import pytest
from helpers.reconcile_objects import MIB, Builder

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.api.weightbudget_status import WeightBudgetStatus
from ballast_operator.fleet.view import Obstacle
from ballast_operator.reconcile.budget_facts import facts
from ballast_operator.reconcile.budget_situation import Situation, fragmentation_percent, in_pieces
from ballast_operator.reconcile.budget_status import body, rounded
from ballast_operator.reconcile.conditions import merge
from ballast_operator.reconcile.pods import Trouble, Wanted
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.workers import Worker

PLAN = pb.Plan(
    fits=True,
    budget_bytes=1024 * MIB,
    lines=[
        pb.PlanLine(line="context", bytes=64 * MIB, source="measured"),
        pb.PlanLine(line="slack", bytes=100 * MIB, source="configured", knob="device.weights.slackPercent"),
    ],
)


def device(free: int, largest: int, waiting: int = 0) -> pb.DeviceState:
    return pb.DeviceState(
        budget_bytes=1024 * MIB,
        pinned_bytes=100 * MIB,
        free_bytes=free * MIB,
        largest_free_bytes=largest * MIB,
        largest_waiting_bytes=waiting * MIB,
    )


def state(free: int = 512, largest: int = 512, waiting: int = 0, plan: pb.Plan = PLAN) -> pb.WorkerState:
    return pb.WorkerState(device=device(free, largest, waiting), plan=plan)


def situation(*workers, replicas: int = 1, **fields) -> Situation:
    spec = WeightBudgetSpec.model_validate({"workers": {"replicas": replicas}})
    fields.setdefault("wanted", Wanted(replicas, "spec", "template", ""))
    return Situation(verdict=fields.pop("verdict", spec), name="default", workers=workers, now=100.0, **fields)


def said(now: Situation) -> dict[str, tuple[str, str]]:
    found = facts(now)
    assert tuple(found) == (
        "Accepted",
        "PlanFits",
        "WorkersReady",
        "Fragmented",
        "UpToDate",
        "Degraded",
        "Ready",
    )
    return {type_: (fact.status, fact.reason.value) for type_, fact in found.items()}


def test_a_pool_at_rest(build: Builder):
    now = situation(build.worker("a", state=state()))
    assert said(now) == {
        "Accepted": ("True", "Accepted"),
        "PlanFits": ("True", "PlanFits"),
        "WorkersReady": ("True", "Ready"),
        "Fragmented": ("False", "NotFragmented"),
        "UpToDate": ("True", "UpToDate"),
        "Degraded": ("False", "AsExpected"),
        "Ready": ("True", "Ready"),
    }
    status = body(now)
    WeightBudgetStatus.model_validate(status)
    assert set(status) <= {f.alias or n for n, f in WeightBudgetStatus.model_fields.items()}
    assert status["device"] == {
        "budget": "1024Mi",
        "pinned": "96Mi",
        "free": "512Mi",
        "largestFree": "512Mi",
        "fragmentationPercent": 0,
    }
    assert status["plan"][1] == {
        "line": "slack",
        "bytes": "100Mi",
        "source": "configured",
        "knob": "spec.device.weights.slackPercent",
    }
    assert status["selector"] == "ballast.dev/budget=default,app.kubernetes.io/component=worker"


def test_before_anything_was_heard_nothing_is_claimed(build: Builder):
    now = situation(build.worker("a", heard=None, ready=False))
    found = said(now)
    assert found["PlanFits"] == ("Unknown", "WorkersStarting")
    assert found["Fragmented"] == ("Unknown", "Unknown")
    assert found["WorkersReady"] == found["Ready"] == ("False", "WorkersStarting")
    status = body(now)
    assert "device" not in status
    assert "plan" not in status
    assert status["readyReplicas"] == 0


def test_the_worst_worker_is_shown(build: Builder):
    workers = [build.worker("a", state=state(512, 512)), build.worker("b", state=state(512, 128))]
    assert body(situation(*workers, replicas=2))["device"]["largestFree"] == "128Mi"
    assert body(situation(*workers, replicas=2))["device"]["fragmentationPercent"] == 75


def test_a_refused_plan_names_shortfall_and_cures(build: Builder):
    refused = pb.Plan(
        fits=False,
        shortfall_bytes=200 * MIB,
        knobs=[pb.Knob(key="device.budget", value="1224Mi", current="1Gi")],
        lines=[pb.PlanLine(line="context", bytes=1)],
    )
    worker = build.worker("a", phase=pb.WORKER_PHASE_REFUSED, state=state(plan=refused))
    now = situation(worker)
    assert said(now)["PlanFits"] == ("False", "PlanRefused")
    assert facts(now)["PlanFits"].message == ("worker a: 200 MiB are missing: set device.budget to 1224Mi (now 1Gi)")
    assert body(now)["shortfall"] == "200Mi"


def test_a_silent_worker_makes_everything_it_knows_unknown(build: Builder):
    now = situation(build.worker("a", state=state(), heard=0.0))
    found = said(now)
    for type_ in ("PlanFits", "WorkersReady", "Fragmented", "Ready"):
        assert found[type_] == ("Unknown", "HeartbeatStale"), type_
    assert "readyReplicas" not in body(now)
    assert body(now)["workers"][0]["reason"] == "HeartbeatStale"


def test_what_a_worker_said_before_it_died_is_not_known_any_more(build: Builder):
    dead = build.worker(
        "a", heard=80.0, ready=False, state=state(512, 1), trouble=Trouble(Reason.WORKER_CRASHED, "exit code 1", 1)
    )
    now = situation(dead, fragmented_since={dead.uid: 0.0})
    found = said(now)
    assert found["PlanFits"] == ("Unknown", "WorkersStarting")
    assert found["Fragmented"] == ("Unknown", "WorkersStarting")
    assert found["WorkersReady"] == ("False", "WorkerCrashed")
    assert "a" in facts(now)["PlanFits"].message


def test_workers_that_are_heard_speak_for_the_pool_beside_one_that_died(build: Builder):
    dead = build.worker("a", heard=80.0, ready=False, state=state(512, 1))
    found = facts(situation(dead, build.worker("b", state=state()), fragmented_since={dead.uid: 0.0}))
    assert (found["PlanFits"].status, found["PlanFits"].message) == ("True", "on 1 of 1 workers that report")
    assert found["Fragmented"].status == "False"


@pytest.mark.parametrize(
    "reason", [Reason.PODS_FORBIDDEN, Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.WORKER_CRASHED]
)
def test_troubles_of_pods_are_told(build: Builder, reason):
    trouble = Trouble(reason, "the cause", 1)
    now = situation(build.worker("a", heard=None, ready=False, trouble=trouble), replicas=2)
    assert said(now)["WorkersReady"] == ("False", reason.value)
    assert facts(now)["WorkersReady"].message == "0 of 2 workers are ready; the cause"
    assert said(now)["Ready"] == ("False", reason.value)


def test_pods_that_cannot_be_made_are_told(build: Builder):
    now = situation(creation=Trouble(Reason.PODS_FORBIDDEN, "quota"))
    assert said(now)["WorkersReady"] == ("False", "PodsForbidden")


def test_one_worker_of_two_is_ready_and_degraded(build: Builder):
    broken = Trouble(Reason.WORKER_CRASHED, "exit 1", 1)
    now = situation(
        build.worker("a", state=state()), build.worker("b", heard=None, ready=False, trouble=broken), replicas=2
    )
    found = said(now)
    assert found["Ready"] == ("True", "Ready")
    assert found["WorkersReady"] == ("False", "WorkerCrashed")
    assert found["Degraded"] == ("True", "WorkerCrashed")


def test_memory_in_pieces_is_said_after_a_minute(build: Builder):
    worker = build.worker("a", state=state(512, 128))
    assert in_pieces(worker)
    assert said(situation(worker, fragmented_since={"uid-a": 41.0}))["Fragmented"] == ("False", "NotFragmented")
    now = situation(worker, fragmented_since={"uid-a": 40.0})
    assert said(now)["Fragmented"] == ("True", "Fragmented")
    assert "ballast.dev/compact" in facts(now)["Fragmented"].message


def leak(mebibytes: int) -> pb.WorkerState:
    told = state()
    told.device.leaked_bytes = mebibytes * MIB
    return told


def test_lost_device_memory_is_degraded_and_says_which_pod_to_delete(build: Builder):
    workers = [build.worker("a", state=state()), *(build.worker(name, state=leak(3)) for name in "cb")]
    now = situation(*workers, replicas=3)
    assert said(now)["Degraded"] == ("True", "DeviceMemoryLeaked")
    assert facts(now)["Degraded"].message.startswith("worker b (and 1 more workers): 3 MiB of its device memory are")
    assert said(now)["Ready"] == ("True", "Ready")


def test_of_device_memory_that_a_silent_worker_had_lost_nothing_is_said(build: Builder):
    now = situation(build.worker("a", state=state()), build.worker("b", state=leak(3), heard=0.0))
    assert said(now)["Degraded"] == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("free", "largest", "waiting", "expected"),
    [(512, 256, 0, False), (512, 255, 0, True), (512, 400, 450, True), (512, 400, 600, False), (0, 0, 10, False)],
)
def test_memory_is_in_pieces_for_what_waits_or_by_more_than_half(build: Builder, free, largest, waiting, expected):
    assert in_pieces(build.worker("a", state=state(free, largest, waiting))) is expected


def test_fragmentation_is_rounded_down_and_zero_without_free_memory():
    assert fragmentation_percent(0, 0) == 0
    assert fragmentation_percent(100, 100) == 0
    assert fragmentation_percent(1000, 999) == 0
    assert fragmentation_percent(100, 1) == 99


@pytest.mark.parametrize(
    ("size", "budget", "expected"),
    [
        (61 << 30, 141 << 30, "61Gi"),
        ((61 << 30) + 5, 141 << 30, "61Gi"),
        ((61 << 30) + (65 << 20), 141 << 30, "62528Mi"),
        (100 * MIB, 1 << 30, "96Mi"),
        (5 * MIB, 1 << 30, "0"),
        (5 * MIB, 128 * MIB, "5Mi"),
    ],
)
def test_figures_are_rounded_in_proportion(size, budget, expected):
    assert rounded(size, budget=budget) == expected


def test_updates_are_pending_blocked_available_or_done(build: Builder):
    def up_to_date(*workers, **fields):
        return said(situation(*workers, replicas=len(workers), **fields))["UpToDate"]

    old = build.worker("a", state=state(), spec_hash="old")
    assert up_to_date(old) == ("False", "Pending")
    assert up_to_date(old, blocked="no room") == ("False", "UpdateBlocked")
    assert up_to_date(build.worker("a", state=state(), template_hash="old")) == ("False", "UpdateAvailable")
    assert up_to_date(build.worker("a", state=state())) == ("True", "UpToDate")
    assert said(situation(wanted=None))["UpToDate"] == ("Unknown", "Unknown")


def test_a_budget_that_is_not_accepted_says_why_and_shows_its_workers(build: Builder):
    now = situation(build.worker("a", state=state()), verdict=Rejection(Reason.INVALID_SPEC, "wrong"), wanted=None)
    found = said(now)
    assert found["Accepted"] == found["Ready"] == ("False", "InvalidSpec")
    assert body(now)["replicas"] == 1


def test_no_workers_wanted_and_paused(build: Builder):
    found = said(situation(replicas=0))
    assert found["WorkersReady"] == found["Ready"] == ("False", "NotRequested")
    assert found["PlanFits"] == ("Unknown", "NotRequested")
    assert said(situation(build.worker("a", state=state()), paused=True))["Accepted"] == ("True", "Paused")


def test_dropped_fields_are_degraded(build: Builder):
    now = situation(build.worker("a", state=state()), unknown_fields=["unknown key 'spec.x'"])
    assert said(now)["Degraded"] == ("True", "UnknownField")


def test_a_pool_with_too_many_models_for_a_service_each_says_where_to_call(build: Builder):
    now = situation(build.worker("a", state=state()), crowded="call them at default-pool")
    assert said(now)["Degraded"] == ("True", "TooManyEndpoints")
    assert said(now)["Ready"] == ("True", "Ready")


def test_a_pod_that_takes_long_to_start_is_starting_and_not_silent(build: Builder):
    worker = build.worker("a", heard=None, now=0.0, ready=False)
    slow = Worker(worker.pod, worker.view, 100.0)
    now = situation(slow)
    assert said(now)["WorkersReady"] == ("False", "WorkersStarting")
    assert body(now)["readyReplicas"] == 0
    assert body(now)["workers"][0]["reason"] == "WorkersStarting"


def test_definitions_of_another_release_are_said(build: Builder):
    now = situation(build.worker("a", state=state()), stale_definitions=["InferenceModel spec.batching.maxSize"])
    assert said(now)["Degraded"] == ("True", "UnknownField")
    assert "lack InferenceModel spec.batching.maxSize: apply crds/*.yaml" in facts(now)["Degraded"].message


def test_a_new_leader_leaves_what_it_finds_until_every_worker_that_runs_has_reported(build: Builder):
    heard, pending = build.worker("a", state=state(256, 256)), build.worker("b", heard=None)
    before = situation(heard, build.worker("b", state=state()), replicas=2)
    told = body(before) | {"shortfall": "1Gi"}
    conditions = merge(facts(before), (), generation=1, now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    again = situation(heard, pending, replicas=2)
    assert facts(again, conditions) == facts(before)
    assert body(again, told) == told


def test_what_was_never_said_is_not_kept(build: Builder):
    now = situation(build.worker("a", heard=None), replicas=1)
    assert facts(now, ())["Ready"].status == "False"
    assert "device" not in body(now, {})


def test_a_spec_that_is_refused_is_said_before_workers_are_heard(build: Builder):
    now = situation(build.worker("a", heard=None), verdict=Rejection(Reason.INVALID_SPEC, "what"))
    kept = [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]
    assert facts(now, kept)["Ready"].status == "False"


def test_a_long_word_on_what_stands_between_a_worker_and_its_operator_is_cut_to_what_a_status_may_hold(build: Builder):
    worker = build.worker("a", state=state())
    worker.view.obstacle = Obstacle(Reason.CERTIFICATE_REFUSED, "x" * 5000)
    [entry] = body(situation(worker))["workers"]
    assert entry["message"] == "x" * 4096
    WeightBudgetStatus.model_validate({"workers": [entry]})
