# SPDX-License-Identifier: Apache-2.0
"""Conditions, comparison of statuses, Events at transitions, commands and demand."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import grpc
import pytest
from helpers.memory_cluster import BUDGET
from helpers.memory_scene import Scene
from helpers.reconcile_objects import MIB, Builder
from prometheus_client import CollectorRegistry

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.weightbudget import CompactionMode
from ballast_operator.api.weightbudget_status import LastCompaction
from ballast_operator.cluster import errors
from ballast_operator.cluster.lease import micro_time
from ballast_operator.cluster.resources import BUDGETS
from ballast_operator.fleet.link import CallError
from ballast_operator.reconcile import commands, demand
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.conditions import Fact, merge, moment, no, timestamp, unknown, yes
from ballast_operator.reconcile.events import Events
from ballast_operator.reconcile.metrics import ReconcileMetrics
from ballast_operator.reconcile.writing import _normal, _pressing, _severity, declared

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(hours=1)


def test_a_condition_keeps_its_time_until_its_status_changes():
    first = merge({"Ready": no(Reason.LOADING, "a")}, [], generation=1, now=NOW)
    assert first[0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    second = merge({"Ready": no(Reason.MEASURING, "b")}, first, generation=2, now=LATER)
    assert second[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("Measuring", 2)
    third = merge({"Ready": yes(Reason.READY)}, second, generation=2, now=LATER)
    assert third[0]["lastTransitionTime"] == "2026-01-01T13:00:00Z"


def test_a_status_has_no_field_that_the_installed_definition_lacks():
    """For one such field the API server refuses the whole status."""
    stale = ["WeightBudget status.hostNodes", "WeightBudget status.device.free", "WeightBudget status.gone.deep"]
    body = {"hostNodes": ["a"], "device": {"free": "1", "budget": "2"}, "replicas": 1}
    assert declared(body, "WeightBudget", stale) == {"device": {"budget": "2"}, "replicas": 1}
    assert body["device"] == {"free": "1", "budget": "2"}
    assert declared(body, "InferenceModel", stale) == body
    assert declared(body, "WeightBudget", ["WeightBudget spec.device.budget"]) == body


def test_a_time_is_read_as_it_was_written():
    later = NOW + dt.timedelta(microseconds=5)
    assert moment(timestamp(NOW)) == NOW
    assert moment(micro_time(later)) == later


def test_a_message_is_bounded():
    [condition] = merge({"Ready": no(Reason.LOADING, "x" * 9000)}, [], generation=1, now=NOW)
    assert len(condition["message"]) == 4096


def test_statuses_are_compared_as_what_they_mean():
    one = {"conditions": [{"type": "A"}, {"type": "B"}], "workers": [{"name": "a"}], "size": {}, "x": None}
    two = {"conditions": [{"type": "B"}, {"type": "A"}], "workers": [{"name": "a"}]}
    assert _normal(one) == _normal(two)
    assert _normal(one) != _normal({**two, "workers": [{"name": "a", "tier": "host"}]})
    assert _normal({"workers": []}) == _normal({})


def test_messages_and_figures_do_not_press():
    def status(**fields: Any) -> dict:
        condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": "m"}
        return {"conditions": [condition | fields.pop("condition", {})], "replicas": 1, "residency": "host", **fields}

    base = _pressing(status(), ["replicas"])
    assert _pressing(status(condition={"message": "other"}), ["replicas"]) == base
    assert _pressing(status(residency="device"), ["replicas"]) == base
    assert _pressing(status(residency="device"), ["replicas", "residency"]) != base
    assert _pressing(status(condition={"reason": "X"}), ["replicas"]) != base
    assert _pressing(status(replicas=2), ["replicas"]) != base


@pytest.mark.parametrize(
    ("type_", "before", "now", "expected"),
    [
        ("Ready", None, yes(Reason.READY), "Normal"),
        ("Ready", yes(Reason.READY), no(Reason.WORKER_GONE), "Warning"),
        ("Ready", None, no(Reason.LOADING), None),
        ("Accepted", None, no(Reason.NAME_CONFLICT), "Warning"),
        ("Accepted", None, yes(Reason.ACCEPTED), None),
        ("Loaded", no(Reason.LOADING), no(Reason.MEASURING), None),
        ("Loaded", no(Reason.LOADING), no(Reason.LOAD_FAILED_PERMANENT), "Warning"),
        ("Degraded", None, yes(Reason.UNKNOWN_FIELD), "Warning"),
        ("Degraded", yes(Reason.UNKNOWN_FIELD), no(Reason.AS_EXPECTED), None),
        ("Fragmented", None, yes(Reason.FRAGMENTED), "Warning"),
        ("PlanFits", None, unknown(Reason.MEASURING), None),
        ("WorkersReady", yes(Reason.READY), unknown(Reason.HEARTBEAT_STALE), "Warning"),
    ],
)
def test_events_say_what_a_person_should_know(type_: str, before: Fact | None, now: Fact, expected):
    assert _severity(type_, before, now) == expected


class Poster:
    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.error: errors.ApiError | None = None

    async def create(self, _, body, *, priority):
        self.bodies.append(body)
        if self.error is not None:
            raise self.error


async def test_the_same_event_is_posted_once_in_ten_minutes(build: Builder):
    clock = [0.0]
    poster = Poster()
    events = Events(
        poster, instance="i", metrics=ReconcileMetrics(CollectorRegistry()), clock=lambda: clock[0], now=lambda: NOW
    )
    obj = build.model_object()
    for note in ("a", "a", "b"):
        events.post(obj, "InferenceModel", "Warning", Reason.NAME_CONFLICT, "Accept", note)
    await asyncio.sleep(0)
    clock[0] = 601.0
    events.post(obj, "InferenceModel", "Warning", Reason.NAME_CONFLICT, "Accept", "a")
    await events.close()
    assert [body["note"] for body in poster.bodies] == ["a", "b", "a"]
    assert poster.bodies[0]["regarding"]["uid"] == "model-minilm"
    assert poster.bodies[0]["eventTime"] == "2026-01-01T12:00:00.000000Z"
    assert poster.bodies[0]["metadata"]["name"].startswith("minilm.")


async def test_an_event_that_cannot_be_posted_and_a_long_note_hurt_nobody(build: Builder):
    poster = Poster()
    poster.error = errors.Forbidden("no")
    events = Events(
        poster, instance="i", metrics=ReconcileMetrics(CollectorRegistry()), clock=lambda: 0.0, now=lambda: NOW
    )
    events.post(build.model_object(), "InferenceModel", "Normal", Reason.READY, "Ready", "x" * 5000)
    await events.close()
    assert len(poster.bodies[0]["note"]) == 1024


def test_a_token_is_done_once():
    obj = {"metadata": {"annotations": {"ballast.dev/compact": "t1"}}}
    assert commands.token(obj, "ballast.dev/compact", None) == "t1"
    assert commands.token(obj, "ballast.dev/compact", "t1") == ""
    assert commands.token(obj, "ballast.dev/compact", "t0") == "t1"
    assert commands.token({"metadata": {}}, "ballast.dev/compact", None) == ""


def test_a_compaction_that_is_asked_for_slides_where_none_is_configured():
    assert commands.mode_asked(CompactionMode.DISABLED) is CompactionMode.MOVE
    assert commands.mode_asked(CompactionMode.LAZY) is CompactionMode.LAZY


def test_the_summary_of_a_compaction_is_that_of_the_worst_worker():
    done = [
        pb.CompactMemoryResponse(
            largest_free_before=free * MIB,
            largest_free_after=300 * MIB + free,
            fragmentation_before=0.25,
            fragmentation_after=0.0,
            moved_bytes=10 * MIB,
            seconds_until_moved=0.01,
            seconds_until_callable=0.02,
            reloaded=["a"],
            not_reloaded=[pb.ModelVerdict(name="b", failure=pb.Failure(message="no room"))] if free == 64 else [],
        )
        for free in (128, 64)
    ]
    compaction = commands.Compaction(CompactionMode.PRELOAD, [], {}, "t")
    found = commands.summary(compaction, done, ["w: dead"], time="2026-01-01T12:00:00Z")
    LastCompaction.model_validate(found)
    assert set(found) <= {f.alias or n for n, f in LastCompaction.model_fields.items()}
    assert (found["largestFreeBefore"], found["moved"], found["reloadedModels"]) == ("64Mi", "20Mi", 2)
    assert (found["workers"], found["failedWorkers"], found["token"]) == (2, 1, "t")
    assert (found["millisecondsUntilMoved"], found["fragmentationPercentBefore"]) == (10, 25)
    assert found["message"] == "w: dead; b: no room"


def test_demand_that_cannot_be_read_is_forgotten():
    stored = {"data": {"demand.json": '{"ns/a": [2.0, 0.5, 1.0], "ns/b": [1.0, null, 1.0]}'}}
    found = demand.restore(stored)
    assert found["ns/a"].utilization == 1.0
    assert found["ns/b"].cost is None
    for broken in (None, {}, {"data": {"demand.json": "{"}}, {"data": {"demand.json": '{"a": 1}'}}):
        assert demand.restore(broken) == {}


class Reader:
    """A connection that answers from a script."""

    def __init__(self, *answers: pb.InspectResponse | CallError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    async def inspect(self, uri: str, digest: str) -> pb.InspectResponse:
        self.asked.append((uri, digest))
        answer = self.answers.pop(0)
        if isinstance(answer, CallError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("code", "given", "reason"),
    [
        (grpc.StatusCode.NOT_FOUND, Reason.SOURCE_NOT_FOUND, Reason.SOURCE_NOT_FOUND),
        (grpc.StatusCode.INVALID_ARGUMENT, Reason.BUNDLE_INVALID, Reason.BUNDLE_INVALID),
        (grpc.StatusCode.INVALID_ARGUMENT, Reason.SOURCE_CHANGED, Reason.SOURCE_CHANGED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED, Reason.PENDING),
        (grpc.StatusCode.FAILED_PRECONDITION, None, Reason.PENDING),  # our epoch is over
        (grpc.StatusCode.UNAVAILABLE, None, Reason.PENDING),
    ],
)
async def test_a_bundle_that_cannot_be_read_is_looked_at_again(build: Builder, code, given, reason):
    clock = [0.0]
    changed = asyncio.Event()
    bundles = Bundles(clock=lambda: clock[0], changed=changed.set)
    model = build.model()
    reader = Reader(CallError("why", code=code, reason=given), pb.InspectResponse(weights_bytes=5))
    assert bundles.want([model], [reader]) is None
    await changed.wait()
    changed.clear()
    assert bundles.get(model.source).rejection.reason is reason
    again = bundles.want([model], [reader])
    assert again > 0
    assert len(reader.asked) == 1
    clock[0] = again
    bundles.want([model], [reader])
    await changed.wait()
    assert bundles.get(model.source).weights_bytes == 5
    clock[0] = 1e6
    assert bundles.want([model], [reader]) is None
    assert len(reader.asked) == 2


async def test_what_nobody_wants_any_more_is_forgotten_and_without_readers_nothing_is_asked(build: Builder):
    changed = asyncio.Event()
    bundles = Bundles(clock=lambda: 0.0, changed=changed.set)
    model = build.model()
    assert bundles.want([model], []) is None
    assert bundles.get(model.source) is None
    reader = Reader(pb.InspectResponse(weights_bytes=5))
    bundles.want([model], [reader])
    await changed.wait()
    bundles.want([], [reader])
    assert bundles.get(model.source) is None
    await bundles.close()


def test_conditions_too_are_written_without_what_the_installed_definition_lacks(scene: Scene):
    stale = ("WeightBudget status.conditions[].observedGeneration",)
    scene.cluster.options = dataclasses.replace(scene.cluster.options, stale_definitions=stale)
    scene.budget()
    scene.leads()
    status = scene.get(BUDGETS, BUDGET)["status"]
    assert status["observedGeneration"] == 1
    assert {key for condition in status["conditions"] for key in condition} == {
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
    }
