# SPDX-License-Identifier: Apache-2.0
"""What models are asked for: sampled from reports, folded by device time, kept for the next leader."""

from __future__ import annotations

import json

import pytest
from helpers.reconcile_objects import Builder

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.placement.demand import Counters, Demand
from ballast_operator.reconcile import demand
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.pool import Pool, Window
from ballast_operator.reconcile.workers import Crew, Worker

SPEC = WeightBudgetSpec()


def empty_pool() -> Pool:
    return Pool(uid="u", bundles=Bundles(clock=lambda: 0.0, changed=lambda: None), window=Window(started=0.0))


def report(build: Builder, *, requests: int, seconds: float, instance: str = "i", name: str = "w") -> Worker:
    state = build.state(requests_total=requests, compute_seconds_total=seconds)
    worker = build.worker(name, heard=None)
    full = pb.WorkerState(condition=pb.WorkerCondition(phase=pb.WORKER_PHASE_READY), models=[state])
    assert worker.view is not None
    worker.view.take(pb.WatchResponse(instance_id=instance, sequence=1, epoch=1, full=full), now=100.0)
    return worker


def look(pool: Pool, *workers: Worker) -> Counters:
    demand.sample(pool, Crew(workers))
    return pool.window.counted["ns/minilm"]


def test_the_first_report_is_the_base_and_each_further_one_counts(build: Builder):
    pool = empty_pool()
    assert look(pool, report(build, requests=100, seconds=9.0)) == Counters(0, 0.0)
    assert look(pool, report(build, requests=110, seconds=10.0)) == Counters(10, 1.0)
    assert pool.compute_seconds == pytest.approx(1.0)


def test_a_worker_that_starts_again_never_counts_negative(build: Builder):
    pool = empty_pool()
    look(pool, report(build, requests=100, seconds=9.0))
    assert look(pool, report(build, requests=3, seconds=0.2, instance="j")) == Counters(0, 0.0)
    assert look(pool, report(build, requests=8, seconds=0.7, instance="j")) == Counters(5, pytest.approx(0.5))
    assert pool.compute_seconds == pytest.approx(0.5)


def test_counters_that_fall_within_one_process_count_for_nothing(build: Builder):
    pool = empty_pool()
    look(pool, report(build, requests=100, seconds=9.0))
    assert look(pool, report(build, requests=50, seconds=4.0)) == Counters(0, 0.0)
    assert pool.compute_seconds == 0.0


def test_a_worker_that_is_missing_for_a_while_is_a_new_base(build: Builder):
    pool = empty_pool()
    look(pool, report(build, requests=100, seconds=9.0), report(build, requests=0, seconds=0.0, name="v", instance="v"))
    look(pool, report(build, requests=0, seconds=0.0, name="v", instance="v"))
    assert look(pool, report(build, requests=900, seconds=90.0)) == Counters(0, 0.0)


def test_the_half_life_is_the_device_time_between_two_repacks(build: Builder):
    pool = empty_pool()
    pool.demand = {"ns/minilm": Demand(rate=0.0, cost=1.0)}
    look(pool, report(build, requests=0, seconds=0.0))
    look(pool, report(build, requests=300, seconds=300.0))
    demand.close_window(pool, SPEC, now=100.0)
    assert SPEC.placement.repack.every_compute_seconds == 300
    assert pool.demand["ns/minilm"] == Demand(rate=pytest.approx(1.5), cost=1.0)


def test_a_window_is_counted_once(build: Builder):
    pool = empty_pool()
    look(pool, report(build, requests=0, seconds=0.0))
    look(pool, report(build, requests=300, seconds=300.0))
    demand.close_window(pool, SPEC, now=100.0)
    assert pool.window == Window(started=100.0, base=pool.window.base)
    assert look(pool, report(build, requests=300, seconds=300.0)) == Counters(0, 0.0)


@pytest.mark.parametrize(
    ("spent", "first_done", "due"),
    [(59.9, False, False), (60.0, False, True), (60.0, True, False), (300.0, True, True)],
)
def test_a_repack_comes_after_60_seconds_of_device_time_and_then_after_each_300(spent, first_done, due):
    pool = empty_pool()
    pool.compute_seconds, pool.first_repack_done = spent, first_done
    assert demand.due(pool, SPEC) is due


def test_both_figures_are_the_users():
    repack = {"firstAfterComputeSeconds": 5, "everyComputeSeconds": 10}
    spec = WeightBudgetSpec.model_validate({"placement": {"repack": repack}})
    pool = empty_pool()
    pool.compute_seconds = 5.0
    assert demand.due(pool, spec)
    pool.first_repack_done = True
    assert not demand.due(pool, spec)


def kept(text: str) -> dict[str, Demand]:
    return demand.restore({"data": {"demand.json": text}})


def test_a_new_leader_reads_what_the_last_one_kept():
    text = json.dumps({"ns/a": [2.5, 0.125, 0.5], "ns/b": [1.0, None, 0.25]})
    assert kept(text) == {"ns/a": Demand(2.5, 0.125, 0.5), "ns/b": Demand(1.0, None, 0.25)}


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": [1]}', '{"a": [1, 1, 1, 1]}', '{"a": ["x", 1]}', "null"])
def test_what_cannot_be_read_is_forgotten(text):
    assert kept(text) == {}
    assert demand.restore(None) == {}
