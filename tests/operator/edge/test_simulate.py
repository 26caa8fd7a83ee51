# SPDX-License-Identifier: Apache-2.0
"""`ballast-simulate`: a WeightBudget tried on a trace; input that makes no sense is named with line and value."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml

from ballast_operator.edge.simulate import main

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "e2e" / "samples" / "traces" / "two-minutes.csv"

BUDGET = """
kind: WeightBudget
metadata: {name: default}
spec:
  workers: {replicas: 2}
  device: {budget: 1Gi}
  placement: {repack: {firstAfterComputeSeconds: 1, everyComputeSeconds: 2}}
"""
MODELS = """
kind: List
items:
- kind: InferenceModel
  metadata: {name: a}
  spec: {budgetRef: {name: default}, source: {uri: "pvc://m/a"}}
  status: {size: {weights: 600Mi, code: 1Mi}}
- kind: InferenceModel
  metadata: {name: b}
  spec: {budgetRef: {name: default}, modelName: team/b, source: {uri: "pvc://m/b"}}
  status: {size: {weights: 600Mi}}
- kind: InferenceModel
  metadata: {name: huge}
  spec: {budgetRef: {name: default}, source: {uri: "pvc://m/h"}}
  status: {size: {weights: 4Gi}}
"""


@pytest.fixture
def simulate(tmp_path, capsys):
    files = {"budget": tmp_path / "budget.yaml", "models": tmp_path / "models.yaml", "trace": tmp_path / "calls.csv"}

    def run(*options, budget=BUDGET, models=MODELS, trace="0,a\n"):
        for name, text in (("budget", budget), ("models", models), ("trace", trace)):
            files[name].write_text(text)
        with contextlib.suppress(SystemExit):
            main([*(part for name, path in files.items() for part in (f"--{name}", str(path))), *options])
        out, err = capsys.readouterr()
        return out or err

    return run


def test_the_figures_of_a_trace_are_printed_as_json_on_request(simulate):
    trace = "\n".join(f"{second},{model},1,50" for second in range(120) for model in ("a", "team/b"))
    found = json.loads(simulate("--json", trace=trace))
    assert found["requests"] == 240
    assert found["repacks"] >= 2
    assert found["reloads"] == 2  # each on a worker of its own: loaded once
    assert found["loads"] == {name: pytest.approx(0.05, rel=0.05) for name in ("worker-0", "worker-1")}


def test_calls_of_a_model_that_no_worker_can_take_are_counted_as_refused(simulate):
    found = json.loads(simulate("--json", trace="0,huge,3\n1,a\n"))
    assert (found["requests"], found["refused"]) == (4, {"huge": 3})


def test_models_that_do_not_fit_together_reload(simulate):
    trace = "\n".join(f"{second},{'ab'[second % 2]}" for second in range(10))
    found = json.loads(simulate("--json", "--workers", "1", "--link", "600Mi", trace=trace))
    assert found["reloads"] == 10
    assert found["reload_seconds"] == pytest.approx(10.0)


def test_seconds_count_from_the_first_call_so_that_they_may_be_a_time_of_day(simulate):
    lines = [(second, model) for second in range(120) for model in ("a", "team/b")]
    now = 1_796_000_000
    assert simulate("--json", trace="\n".join(f"{now + second},{model}" for second, model in lines)) == simulate(
        "--json", trace="\n".join(f"{second},{model}" for second, model in lines)
    )


def test_a_table_for_a_person(simulate):
    lines = simulate(trace="# two calls\nseconds,model,requests\n0, a, 2\n").splitlines()
    assert lines[0] == "requests         2 in 0 s"
    assert any(line.startswith("WORKER") for line in lines)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("0,a\nx,a\n", ["calls.csv line 2", "seconds is 'x'", "number from 0 on"]),
        ("0,a\n-1,a\n", ["line 2", "'-1'"]),
        ("1,a\n0,a\n", ["line 2", "0 comes after 1", "sort the trace"]),
        ("0,a,0\n", ["line 1", "requests is '0'", "whole number from 1"]),
        ("0,a,1.5\n", ["line 1", "'1.5'"]),
        ("0\n", ["line 1", "'0' has 1 fields", "seconds,model"]),
        ("0,teem/b\n", ["line 1", "'teem/b'", "did you mean 'team/b'?"]),
        ("0,a,1,nan\n", ["line 1", "milliseconds is 'nan'"]),
        ("0,a\n1e300,a\n", ["line 2", "1e300 is more than a year after the first call, at 0"]),
        ("", ["calls.csv has no call", "seconds,model"]),
        ("seconds,model\n# nothing\n", ["calls.csv has no call"]),
    ],
)
def test_a_line_that_cannot_be_read_is_named_with_its_value(simulate, trace, words):
    said = simulate(trace=trace)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"budget": BUDGET.replace("1Gi", "90%")}, [], ["spec.device.budget is 90%", "give --capacity"]),
        ({"budget": BUDGET.replace("replicas", "replcas")}, [], ["budget.yaml", "did you mean 'workers.replicas'?"]),
        ({"budget": "a: [1"}, [], ["budget.yaml", "line", "is no YAML"]),
        ({"budget": BUDGET + "---" + BUDGET}, [], ["2 WeightBudgets", "keep one"]),
        ({"models": "kind: Pod\n"}, [], ["has no InferenceModel; it has Pod"]),
        ({"models": MODELS.replace("weights: 4Gi", "scratch: 4Gi")}, [], ["size of 'huge'", "--size huge=SIZE"]),
        ({}, ["--size", "hug=1Gi"], ["--size hug", "did you mean 'huge'?"]),
        ({}, ["--size", "huge=1GB"], ["--size huge", "'1GB' is not a size"]),
        ({}, ["--workers", "0"], ["0 workers", "--workers 1 or more"]),
        ({}, ["--link", "0"], ["above 0"]),
        ({}, ["--wrokers", "2"], ["unknown option '--wrokers'", "did you mean '--workers'?"]),
    ],
)
def test_input_that_makes_no_sense_is_refused_with_what_to_write(simulate, changes, options, words):
    said = simulate(*options, **changes)
    assert all(word in said for word in words), said


def test_the_plan_of_a_pool_that_runs_is_its_capacity(simulate):
    plan = (
        "status: {plan: [{line: code, bytes: 1Mi}, {line: on-demand weights, bytes: 5Gi}, {line: slack, bytes: 9Gi}]}"
    )
    assert json.loads(simulate("--json", budget=BUDGET + plan, trace="0,huge\n"))["refused"] == {}


def test_the_example_trace_of_the_samples_runs(capsys):
    samples = ROOT / "e2e" / "samples"
    documents = yaml.safe_load_all((samples / "models.yaml").read_text())
    sizes = [part for name in (d["metadata"]["name"] for d in documents) for part in ("--size", f"{name}=60Mi")]
    main(
        [
            "--budget",
            str(samples / "budget.yaml"),
            "--models",
            str(samples / "models.yaml"),
            "--trace",
            str(TRACE),
            *sizes,
        ]
    )
    assert "busiest worker" in capsys.readouterr().out
