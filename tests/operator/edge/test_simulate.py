# SPDX-License-Identifier: Apache-2.0
"""`ballast-simulate`: a WeightBudget tried on a trace; input that makes no sense is named with line and value."""

from __future__ import annotations

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
        code = 0
        try:
            main([*(part for name, path in files.items() for part in (f"--{name}", str(path))), *options])
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        assert code == (2 if err else 0)
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
    assert lines[0] == "models           3"
    assert lines[1].startswith(
        "capacity         922 MiB for weights and code on each worker: spec.device.budget 1Gi less"
    )
    assert "requests         2 in 0 s" in lines
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
        ("0,a,1,1e300\n", ["line 1", "milliseconds is '1e300'", "86400000 at most"]),
        ("0,a,1e300\n", ["line 1", "requests is '1e300'", "1000000000 at most"]),
        ("nan,a\n", ["line 1", "seconds is 'nan'"]),
        ("0;a\n", ["line 1", "'0;a' has 1 fields"]),
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
        ({"budget": BUDGET + "---" + BUDGET}, [], ["2 WeightBudgets", "keep one"]),
        (
            {"models": MODELS.replace("weights", "scratch")},
            [],
            ["'a', 'b', 'huge' is", "--size b=SIZE --size huge=SIZE"],
        ),
        ({}, ["--size", "hug=1Gi"], ["--size hug", "did you mean 'huge'?"]),
        ({}, ["--size", "huge=1GB"], ["--size huge", "'1GB' is not a size"]),
        ({}, ["--workers", "0"], ["0 workers", "--workers 1 or more"]),
        ({}, ["--workers", "1001"], ["1001 workers", "1000 at most"]),
        ({}, ["--size", "huge"], ["--size huge", "write MODEL=SIZE"]),
        ({}, ["--size", "huge=" + "9" * 6000], ["--size huge", "too long for a size"]),
        ({}, ["--size", "huge=9999999Ti"], ["--size huge", "more than 1048576Ti"]),
        ({}, ["--size", "b=1", "--size", "team/b=2"], ["size of 'b' is given twice"]),
        ({}, ["--link", "0"], ["above 0"]),
        ({}, ["--capacity", "0"], ["above 0"]),
        ({}, ["--capacity", ""], ["--capacity: '' is not a size"]),
        ({}, ["--milliseconds", "nan"], ["--milliseconds is 'nan'"]),
        ({}, ["--wrokers", "2"], ["unknown option '--wrokers'", "did you mean '--workers'?"]),
    ],
)
def test_input_that_makes_no_sense_is_refused_with_what_to_write(simulate, changes, options, words):
    said = simulate(*options, **changes)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("broken", ["budget", "models", "trace"])
def test_a_file_that_cannot_be_read_takes_one_line_to_say(simulate, tmp_path, broken):
    assert simulate(f"--{broken}", str(tmp_path / "none")).splitlines() == [
        f"ballast-simulate: {tmp_path / 'none'} cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_spreadsheet_may_have_written_the_trace(simulate, tmp_path, encoding):
    exported = tmp_path / "export.csv"
    exported.write_bytes('"Seconds","Model","Requests","Milliseconds"\r\n"0","a","2",""\r\n1,a,,8\r\n'.encode(encoding))
    assert json.loads(simulate("--json", "--trace", str(exported)))["requests"] == 3


def test_bytes_that_are_no_text_are_named_with_their_place(simulate, tmp_path):
    (tmp_path / "broken.csv").write_bytes(b"0,a\xff")
    assert "broken.csv is no text at byte 3: save it as UTF-8" in simulate("--trace", str(tmp_path / "broken.csv"))


def test_a_name_that_clients_call_is_not_mistaken_for_that_of_an_object(simulate):
    models = MODELS.replace("team/b", "huge").replace(
        'source: {uri: "pvc://m/h', 'modelName: h, source: {uri: "pvc://m/h'
    )
    assert json.loads(simulate("--json", models=models, trace="0,huge\n"))["refused"] == {}


def test_a_larger_budget_counts_although_the_pool_has_a_plan(simulate):
    plan = "status: {plan: [{line: context, bytes: 100Mi}, {line: on-demand weights, bytes: 800Mi}]}"
    before = json.loads(simulate("--json", budget=BUDGET + plan, trace="0,huge\n"))
    after = json.loads(simulate("--json", budget=BUDGET.replace("1Gi", "8Gi") + plan, trace="0,huge\n"))
    assert (before["refused"], after["refused"]) == ({"huge": 1}, {})
    assert "spec.device.budget 8Gi less context 100 MiB" in after["capacity_source"]


def test_a_capacity_that_is_given_counts_alone(simulate):
    found = json.loads(simulate("--json", "--capacity", "5Gi", budget=BUDGET.replace("1Gi", "90%"), trace="0,huge\n"))
    assert (found["refused"], found["capacity_bytes"], found["capacity_source"]) == ({}, 5 << 30, "--capacity")


def test_models_of_other_pools_are_left_out_and_counted(simulate):
    models = MODELS.replace(
        "{name: huge}\n  spec: {budgetRef: {name: default}", "{name: huge}\n  spec: {budgetRef: {name: big}"
    )
    found = json.loads(simulate("--json", models=models))
    assert (found["models"], found["models_left_out"]) == (2, 1)
    assert simulate(models=models).splitlines()[0] == "models           2, without 1 of big"


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
