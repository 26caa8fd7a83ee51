# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the GPU runs on the CPU with small models, part by part; what it measures there is not looked at."""

from __future__ import annotations

import dataclasses
import json
import threading

import jax
import pytest

from ballast_worker.build import runtime, work
from ballast_worker.bundle.reader import open_bundle
from benchmarks.gpu import __main__ as command_line
from benchmarks.gpu import prepare, traffic
from benchmarks.gpu.part import PARTS, measure
from benchmarks.gpu.setting import SCALES, Setting
from benchmarks.gpu.worker import Answered

FIGURES = {
    "loads": {"load_ratio_of_limit", "small_load_milliseconds", "mixed_loads", "plan_against_driver_mebibytes"},
    "traffic": {"input_p99_added_milliseconds_during_load", "load_ratio_under_traffic"},
    "compaction": {
        "compaction_speedup",
        "compaction_all_callable_speedup",
        "first_call_at_a_new_address_milliseconds",
    },
    "locking": {"longest_standstill_milliseconds", "pool_start"},
    "building": {"executions_beside_a_builder"},
    "scratch": {"scratch"},
    "churn-arena": {"churn_arena"},
    "churn-bfc": {"churn_bfc"},
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> Setting:
    folder = tmp_path_factory.mktemp("benchmark")
    setting = Setting("cpu", SCALES["small"], folder, folder / "pool")
    prepare.pack(setting)
    for path in (folder / "bundles").iterdir():  # in this process, which is quicker than one for each
        bundle = open_bundle(path)
        work.build(
            bundle=path,
            digest=bundle.digest,
            programs=[tuple(sorted(program.items())) for program in bundle.manifest.canonical_programs()],
            store=folder / "executables",
            runtime=runtime.describe("cpu", "cpu"),
            device=jax.devices("cpu")[0],
            memory_bytes=1 << 30,
            context=lambda: 0,
            emit=lambda **_: None,
        )
    prepare.keep(setting, prepare.build(setting))
    return setting


@pytest.mark.parametrize("part", PARTS)
def test_each_part_gives_its_figures(part, setting):
    figures = {}
    measure(part, setting, lambda **some: figures.update(some))
    assert set(figures) >= FIGURES[part]
    json.dumps(figures, allow_nan=False)


def test_the_churn_fails_no_allocation(setting):
    figures = {}
    measure("churn-arena", setting, lambda **some: figures.update(some))
    churn = figures["churn_arena"]
    assert churn["loads"] >= setting.scale.churn_loads
    assert (churn["failed_allocations"], churn["refused_calls"]) == (0, 0)


def test_requests_are_waited_for_although_a_refusal_overtakes_them():
    class Slow:
        def zeros(self, _):
            return None

        def submit(self, _name, _inputs, done):
            first.append(0)
            if len(first) == 4:
                several.set()
            delay = 0.05 if len(first) % 2 else 0.0
            threading.Timer(delay, done, [Answered(0.0, delay, None)]).start()

    first, several = [], threading.Event()
    with traffic._requests(Slow(), per_second=200.0) as answers:
        assert several.wait(20)
    assert len(answers) == len(first) >= 4


def test_every_part_has_figures_that_are_looked_for():
    assert set(FIGURES) == set(PARTS)


def test_a_part_runs_in_a_process_of_its_own(setting):
    figures = {}
    command_line._run("scratch", setting, "small", figures)
    assert figures["scratch"]["sort"]["compiler_bytes"] > 0


def test_a_part_that_fails_says_so(setting, tmp_path):
    with pytest.raises(command_line.PartError, match="loads ended with exit code 1"):
        command_line._run("loads", dataclasses.replace(setting, folder=tmp_path), "small", {})
