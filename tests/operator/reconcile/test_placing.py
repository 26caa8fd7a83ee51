# SPDX-License-Identifier: Apache-2.0
"""When models are placed, and what the pack is given."""

from __future__ import annotations

import dataclasses
import math

import pytest
from helpers.reconcile_objects import MIB, Builder

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.placement.demand import Demand
from ballast_operator.reconcile.bundles import Bundle
from ballast_operator.reconcile.placing import (
    GATHER_SECONDS,
    SAMPLE_SECONDS,
    Situation,
    Trigger,
    capacities,
    demands,
    move_price,
    room,
    sample_seconds,
    signature,
    trigger,
)
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.workers import Crew

CALM = Situation(
    workers=frozenset({"a", "b"}),
    starting=False,
    reading=False,
    waited=100.0,
    signature=1,
    room=1,
    workers_before=frozenset({"a", "b"}),
    signature_before=1,
    room_before=1,
    assigned=frozenset({"a"}),
    requested=False,
    compute_due=False,
    unrecorded=False,
)
FRESH = dataclasses.replace(CALM, workers_before=None, signature_before=None, room_before=None, assigned=frozenset())


@pytest.mark.parametrize(
    ("situation", "changes", "expected"),
    [
        (CALM, {}, None),
        (CALM, {"workers": frozenset()}, None),
        (CALM, {"signature": 2}, Trigger.MODELS),
        (CALM, {"room": 2}, Trigger.WORKERS),
        (CALM, {"requested": True}, Trigger.REQUEST),
        (CALM, {"compute_due": True}, Trigger.COMPUTE),
        (CALM, {"unrecorded": True}, Trigger.MODELS),
        (CALM, {"workers": frozenset({"a"})}, Trigger.WORKERS),
        (CALM, {"workers": frozenset({"a", "b", "c"})}, Trigger.WORKERS),
        # more are on their way: wait for them, but not for ever, and never when one has gone
        (CALM, {"workers": frozenset({"a", "b", "c"}), "starting": True, "waited": 1.0}, None),
        (CALM, {"workers": frozenset({"a", "b", "c"}), "starting": True, "waited": GATHER_SECONDS}, Trigger.WORKERS),
        (CALM, {"workers": frozenset({"a", "c"}), "starting": True, "waited": 1.0}, Trigger.WORKERS),
        (FRESH, {}, Trigger.START),
        (FRESH, {"starting": True, "waited": 1.0}, None),
        (FRESH, {"reading": True, "waited": 1.0}, None),
        (FRESH, {"starting": True, "waited": GATHER_SECONDS}, Trigger.START),
        # a new leader goes on with what was written down
        (FRESH, {"assigned": frozenset({"a", "b"})}, Trigger.MODELS),
        (FRESH, {"assigned": frozenset({"a", "gone"})}, Trigger.WORKERS),
        (FRESH, {"assigned": frozenset({"a"})}, Trigger.WORKERS),
    ],
)
def test_the_cause_of_a_placement(situation, changes, expected):
    assert trigger(dataclasses.replace(situation, **changes)) is expected


def find(models, crew, *, bundle=None, demand=None, placed=False):
    return demands(models, crew, bundle=lambda _: bundle, demand=demand or {}, placed=lambda _: placed)


def test_a_model_whose_headers_are_not_read_waits(build: Builder):
    found, waiting = find([build.model()], Crew([]))
    assert found == []
    assert waiting["model-minilm"].reason is Reason.PENDING


def test_a_model_whose_bundle_cannot_be_read_says_why(build: Builder):
    broken = Bundle(rejection=Rejection(Reason.BUNDLE_INVALID, "no manifest"))
    found, waiting = find([build.model()], Crew([]), bundle=broken)
    assert found == []
    assert waiting["model-minilm"].message == "no manifest"


def test_a_model_that_is_placed_stays_so_whatever_happens_to_its_source(build: Builder):
    broken = Bundle(rejection=Rejection(Reason.SOURCE_NOT_FOUND, "gone"))
    found, waiting = find([build.model()], Crew([]), bundle=broken, placed=True)
    assert [m.name for m in found] == ["model-minilm"]
    assert not waiting


def test_what_workers_measured_wins_over_the_headers(build: Builder):
    worker = build.worker("w", build.state(weights_bytes=30 * MIB, code_bytes=2 * MIB))
    [found], _ = find([build.model()], Crew([worker]), bundle=Bundle(10 * MIB))
    assert (found.weights_bytes, found.code_bytes) == (30 * MIB, 2 * MIB)
    [found], _ = find([build.model()], Crew([]), bundle=Bundle(10 * MIB))
    assert (found.weights_bytes, found.code_bytes) == (10 * MIB, 0)


def test_wish_and_demand_travel(build: Builder):
    model = build.model(residency="device", replicas=2)
    usage = {"ns/minilm": Demand(rate=10.0, cost=0.02)}
    [found], _ = find([model], Crew([]), bundle=Bundle(1), demand=usage)
    assert (found.pinned, found.replicas, found.all_workers) == (True, 2, False)
    assert found.utilization == pytest.approx(0.2)
    [found], _ = find([build.model(coverage="allWorkers")], Crew([]), bundle=Bundle(1))
    assert found.all_workers


def plan(**lines: int) -> pb.WorkerState:
    return pb.WorkerState(plan=pb.Plan(fits=True, lines=[pb.PlanLine(line=k, bytes=v) for k, v in lines.items()]))


def test_capacity_is_what_weights_and_code_share_and_a_worker_without_plan_is_like_the_others(build: Builder):
    lines = {"context": 1, "code": 2, "scratch": 4, "pinned weights": 8, "on-demand weights": 16, "slack": 32}
    workers = [build.worker("a", build.state(), state=plan(**lines)), build.worker("b")]
    one, two = capacities(Crew(workers), {"minilm": "model-minilm"})
    assert (one.name, one.node, one.capacity_bytes) == ("a", "node-a", 26)
    assert one.holds == {"model-minilm"}
    assert (two.capacity_bytes, two.holds) == (26, frozenset())


def test_workers_that_cannot_take_models_are_left_out(build: Builder):
    workers = [
        build.worker("terminating", terminating=True),
        build.worker("finished", finished=True),
        build.worker("leaving", leaving=True),
        build.worker("awaited", heard=None),
        build.worker("long silent", heard=0.0, now=100.0),
        build.worker("silent, and its pod is not ready", heard=80.0, now=100.0, ready=False),
        build.worker("silent for a while", heard=80.0, now=100.0),
        build.worker("refused", phase=pb.WORKER_PHASE_REFUSED),
    ]
    assert [w.name for w in capacities(Crew(workers), {})] == ["silent for a while", "refused"]


def test_demand_alone_changes_no_signature_and_small_shifts_no_room(build: Builder):
    [idle], _ = find([build.model()], Crew([]), bundle=Bundle(1))
    busy = dataclasses.replace(idle, utilization=0.9, code_bytes=7)
    assert signature([idle]) == signature([busy])
    assert signature([idle]) != signature([dataclasses.replace(idle, weights_bytes=2)])
    [first] = capacities(Crew([build.worker("a", state=plan(code=900 * MIB))]), {})
    shifted = dataclasses.replace(first, capacity_bytes=first.capacity_bytes + 3 * MIB)
    assert room([first]) == room([shifted])
    assert room([first]) != room([dataclasses.replace(first, capacity_bytes=None)])
    assert room([first]) != room([dataclasses.replace(first, capacity_bytes=2 * first.capacity_bytes)])


def loads(build: Builder, *measured: tuple[int, int]) -> Crew:
    states = [build.state(f"m{n}", weights_bytes=size, load_milliseconds=ms) for n, (size, ms) in enumerate(measured)]
    return Crew([build.worker("w", *states)])


def test_a_move_costs_what_the_workers_measured(build: Builder):
    fast, slow, small = (100 * MIB, 100), (200 * MIB, 2000), (MIB, 1000)
    price = move_price(loads(build, fast, slow, small), [], every_compute_seconds=300)
    assert price.warm_bytes_per_second == pytest.approx(1000 * MIB)
    assert price.cold_bytes_per_second == pytest.approx(100 * MIB)
    assert price.seconds(200 * MIB, warm=False) == pytest.approx(2.0)


def test_while_nothing_was_measured_moves_are_free(build: Builder):
    assert move_price(Crew([build.worker("w")]), [], every_compute_seconds=300).seconds(MIB, warm=False) == 0.0


def test_a_better_place_counts_until_the_next_repack(build: Builder):
    [found], _ = find([build.model()], Crew([]), bundle=Bundle(1))
    busy = dataclasses.replace(found, utilization=2.0)
    assert move_price(Crew([]), [busy], every_compute_seconds=300).horizon_seconds == pytest.approx(150.0)
    assert move_price(Crew([]), [busy], every_compute_seconds=2).horizon_seconds == pytest.approx(15.0)
    assert move_price(Crew([]), [found], every_compute_seconds=300).horizon_seconds == math.inf


def test_a_large_pool_is_looked_at_less_often_when_nothing_happens():
    assert sample_seconds(10) == sample_seconds(1000) == SAMPLE_SECONDS
    assert sample_seconds(5000) == 60.0
