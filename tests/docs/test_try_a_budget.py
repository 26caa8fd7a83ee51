# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/how-to/try-a-budget.md, run on what kubectl prints of a pool, lead where the text says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from ballast_operator.edge.simulate import main

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "e2e" / "samples"
TEXT = (ROOT / "docs" / "how-to" / "try-a-budget.md").read_text(encoding="utf-8")
LINES = "\n".join(re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)).replace("\\\n", " ").splitlines()
SIMULATE = [shlex.split(line)[1:] for line in LINES if line.startswith("ballast-simulate ")]
KUBECTL = dict(re.findall(r"^kubectl get (\w+)\.ballast\.dev.* -o yaml > (\S+)$", "\n".join(LINES), re.MULTILINE))

PLAN = [
    {"line": "context", "bytes": "24Mi", "source": "driver and libraries, measured; copy buffers"},
    {"line": "code", "bytes": "8388608", "source": "executables of 11 models, measured"},
    {"line": "scratch", "bytes": "80Mi", "source": "configured", "knob": "spec.device.scratch"},
    {"line": "pinned weights", "bytes": "91226112", "source": "1 pinned model", "knob": "spec.residency"},
    {"line": "on-demand weights", "bytes": "157076684", "source": "the remainder"},
    {"line": "slack", "bytes": "36909876", "source": "kept free", "knob": "spec.device.weights.slackPercent"},
]


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """What `kubectl get` prints of the pool of the samples, another one beside it, in a folder of one's own."""
    monkeypatch.chdir(tmp_path)
    meta = {"namespace": "demo", "resourceVersion": "71", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    budget = yaml.safe_load((SAMPLES / "budget.yaml").read_text())
    budget["metadata"] |= meta
    budget["status"] = {"observedGeneration": 1, "plan": PLAN}
    models = list(yaml.safe_load_all((SAMPLES / "models.yaml").read_text()))
    for model in models:
        model["metadata"] |= meta
        model["status"] = {"size": {"weights": "60Mi", "code": "512Ki", "measured": True}}
    other = {**models[0], "metadata": {**models[0]["metadata"], "namespace": "other"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [*models, other], "metadata": {"resourceVersion": ""}}
    printed = {"weightbudget": budget, "inferencemodels": listed}
    for kind, file in KUBECTL.items():
        Path(file).write_text(yaml.safe_dump(printed[kind]))
    Path("calls.csv").write_text((SAMPLES / "traces" / "two-minutes.csv").read_text())
    return budget


def figures(capsys, arguments):
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_text_has_both_exports_and_all_commands():
    assert KUBECTL == {"weightbudget": "budget.yaml", "inferencemodels": "models.yaml"}
    assert len(SIMULATE) == 3


@pytest.mark.parametrize("arguments", SIMULATE[:2], ids=" ".join)
def test_a_pool_that_runs_is_played_as_it_is(pool, capsys, arguments):
    found = figures(capsys, arguments)
    assert (found["models"], found["models_left_out"], found["refused"]) == (11, 1, {})
    shared = [line["bytes"] for line in PLAN if line["line"] in {"code", "pinned weights", "on-demand weights"}]
    assert found["capacity_bytes"] == sum(map(int, shared))
    assert len(found["loads"]) == (6 if "--workers" in arguments else 2)


@pytest.mark.parametrize(
    ("change", "reloads_fewer"),
    [
        ({"budget": "640Mi"}, True),
        ({"budget": "300Mi"}, False),
        ({"scratch": "20Mi"}, True),
        ({"scratch": "150Mi"}, False),
        ({"weights": {"slackPercent": 40}}, False),
        ({"weights": {"maxPercent": 40}}, False),
    ],
)
def test_a_change_of_the_device_changes_the_answer_as_it_would_in_the_pool(pool, capsys, change, reloads_fewer):
    before = figures(capsys, SIMULATE[0])
    pool["spec"]["device"] |= change
    Path("budget.yaml").write_text(yaml.safe_dump(pool))
    after = figures(capsys, SIMULATE[0])
    assert (after["capacity_bytes"] > before["capacity_bytes"]) is reloads_fewer
    assert (after["reloads"] < before["reloads"]) is reloads_fewer
    assert after["reloads"] != before["reloads"]


def test_a_change_of_the_workers_counts(pool, capsys):
    pool["spec"]["workers"]["replicas"] = 4
    Path("budget.yaml").write_text(yaml.safe_dump(pool))
    assert len(figures(capsys, SIMULATE[0])["loads"]) == 4


def test_the_example_trace_names_models_of_the_samples(pool, capsys):
    (trace,) = re.findall(r"```csv\n(.*?)```", TEXT, re.DOTALL)
    Path("calls.csv").write_text(trace)
    assert figures(capsys, SIMULATE[0])["requests"] == 4


def test_before_a_pool_runs_the_samples_are_played_with_the_sizes_of_the_text(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert figures(capsys, SIMULATE[2])["refused"] == {}


def test_every_line_that_is_printed_is_explained(pool, capsys):
    main(SIMULATE[0])
    printed = {line[:16].strip() for line in capsys.readouterr().out.splitlines() if not line.startswith("worker-")}
    rows = re.findall(r"^\| ([\w, ]+) \| ", TEXT.partition("## What it prints")[2], re.MULTILINE)
    explained = {word for row in rows for word in row.split(", ")}
    assert printed - {""} <= explained
