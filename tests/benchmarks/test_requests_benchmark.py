# SPDX-License-Identifier: Apache-2.0
"""The benchmark of requests runs: a worker answers rightly over every protocol, and every figure is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.requests import cores
from benchmarks.requests.models import NAMES, questions, right
from benchmarks.requests.server import FLOOR_READY, ServerError, serving
from benchmarks.requests.wires import WIRES

POINT = {
    "requests_per_second",
    "p50_milliseconds",
    "p99_milliseconds",
    "server_cpu_microseconds_per_request",
    "generator_cpu_share",
}


def test_a_small_run_has_every_figure_and_no_error() -> None:
    argv = [sys.executable, "-m", "benchmarks.requests", "--seconds", "0.1", "--workers", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["errors"] == 0
    assert set(figures["protocols"]) == {"http_json", "http_binary", "grpc"}
    for points in figures["protocols"].values():
        assert set(points["2"]) == POINT
        assert points["2"]["requests_per_second"] > 0
    limit = figures["limit"]
    assert limit["calls_per_second"] > 0
    assert limit["call_microseconds_p50"] > 0
    assert limit["floor_requests_per_second"] == limit["floor"]["http_binary"]["8"]["requests_per_second"] > 0
    assert figures["batching"] == {"max_size": 0, "max_delay_milliseconds": 0, "rows_of_an_execution": 1}


def test_any_stretch_of_questions_is_spread_over_the_models_and_each_has_its_own_answer():
    asked = questions()
    assert [name for name, _, _ in asked[:6]] == [*NAMES, *NAMES]
    answers = [expected for _, _, expected in asked]
    assert [right(answer, answers[0]) for answer in answers].count(True) == 1


def test_an_answer_that_is_another_or_not_a_number_is_wrong():
    _, _, expected = questions()[0]
    assert right(expected + np.float32(1e-4), expected)
    assert not right(expected + np.float32(1e-3), expected)
    assert not right(np.full_like(expected, np.nan), expected)
    assert not right(expected[:1], expected)


@pytest.mark.parametrize("wire", WIRES)
def test_requests_are_bytes_that_name_the_model(wire):
    (name, row, _), *_ = questions()
    assert name.encode() in WIRES[wire].request(name, row)


def test_a_server_has_its_core_for_all_its_life_and_who_asks_is_not_bound_to_it():
    before = os.sched_getaffinity(0)
    core = cores.choose().server
    with serving("benchmarks.requests.floor", ["--seconds", "0.01"], ready=FLOOR_READY, core=core) as server:
        assert os.sched_getaffinity(0) == before
        threads = [int(task.name) for task in Path(f"/proc/{server.group}/task").iterdir()]
        assert {core} == set().union(*map(os.sched_getaffinity, threads))
        assert server.cpu_seconds() > 0


def test_a_server_that_ends_before_it_is_ready_is_named_with_its_last_words(tmp_path):
    argv = ["--config", str(tmp_path / "none.yaml")]
    with (
        pytest.raises(ServerError, match=r"none\.yaml"),
        serving("ballast_worker.control.main", argv, ready="worker.ready", core=cores.choose().server),
    ):
        pass
