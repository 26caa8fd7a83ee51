# SPDX-License-Identifier: Apache-2.0
"""`kubectl ballast`, with a kubectl that knows three objects and forwards a port to the operator's own pages."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.reconcile_objects import MIB, Builder

from ballast_contract.reasons import Reason
from ballast_operator.cluster.resources import BUDGETS, MODELS
from ballast_operator.edge.introspection import Introspection
from ballast_operator.edge.kubectl import Kubectl, KubectlError
from ballast_operator.edge.plugin import main
from ballast_operator.placement.demand import Demand
from ballast_operator.placement.model import ModelDemand, Packed, WorkerCapacity
from ballast_operator.placement.packing import pack
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.explaining import explanation
from ballast_operator.reconcile.pool import Pool, Window
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.world import make_caches

FORWARD = """#!/usr/bin/env python3
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
(here / "calls").open("a").write(json.dumps(words) + "\\n")
if words[0] == "config":
    print("ns", end="")
elif words[0] == "get":
    answer = here / words[1].partition(".")[0]
    if not answer.exists():
        sys.exit(print("Error from server (Forbidden): pods is forbidden", file=sys.stderr) or 1)
    print(answer.read_text())
elif words[0] == "port-forward":
    print(f"Forwarding from 127.0.0.1:{(here / 'port').read_text()} -> 8004", flush=True)
    time.sleep(60)
"""


class Served:
    """The pages of a leader, in a loop of their own."""

    def __init__(self, world) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pages = Introspection(world, port=0)
        self.port = asyncio.run_coroutine_threadsafe(self._pages.start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._pages.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def world_of(*models, budget):
    caches = make_caches()
    for resource, obj in [(BUDGETS, budget), *((MODELS, model) for model in models)]:
        caches[resource].observe(None, obj)
    pool = Pool(uid="u", bundles=Bundles(clock=lambda: 0.0, changed=lambda: None), window=Window(started=0.0))
    demands = [ModelDemand(m["metadata"]["uid"], 300 * MIB, utilization=0.2 * n) for n, m in enumerate(models)]
    workers = [WorkerCapacity(f"default-{n}", capacity_bytes=1 << 30) for n in range(2)]
    packing = pack(demands, workers, {})
    pool.packed, pool.placements, pool.targets = Packed(demands, workers), packing.placements, packing.assignments
    pool.demand = {"ns/minilm": Demand(rate=20.0, cost=0.01)}
    return SimpleNamespace(caches=caches, pool=lambda *_: pool)


@pytest.fixture
def objects():
    """A budget and its models."""
    build = Builder()
    models = [build.model_object("crepe"), build.model_object("minilm", modelName="team/minilm")]
    return build.budget_object(), models


@pytest.fixture
def world(objects):
    budget, models = objects
    return world_of(*models, budget=budget)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch, objects, world):
    """The folder of a kubectl: what it answers with, and what it was asked."""
    budget, models = objects
    served = Served(world)
    condition = {"type": "Placed", "status": "True", "reason": "Placed", "message": "on default-0"}
    for model in models:
        model["status"] = {"conditions": [condition]}
    lines = [
        {"line": "context", "bytes": "64Mi", "source": "measured"},
        {"line": "slack", "bytes": "448Mi", "source": "configured", "knob": "device.weights.slackPercent"},
    ]
    budget["status"] = {"plan": lines, "conditions": [{**condition, "type": "PlanFits", "message": "on 2 workers"}]}
    pod = {"metadata": {"name": "ballast-7", "namespace": "ballast-system"}}
    for name, items in (("inferencemodels", models), ("weightbudgets", [budget]), ("pods", [pod])):
        (tmp_path / name).write_text(json.dumps({"items": items}))
    (tmp_path / "port").write_text(str(served.port))
    (tmp_path / "kubectl").write_text(FORWARD)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    yield tmp_path
    served.stop()


@pytest.fixture
def run(kubectl, capsys):
    def call(*words: str, code: int = 0) -> str:
        if code:
            with pytest.raises(SystemExit) as end:
                main(words)
            assert end.value.code == code
            return capsys.readouterr().err
        main(words)
        return capsys.readouterr().out

    return call


def test_an_explanation_names_every_worker_with_its_score_and_what_would_have_to_change(run):
    said = run("explain", "minilm")
    assert "InferenceModel ns/minilm, WeightBudget default" in said
    assert "Placed     True    Placed  on default-0" in said
    assert "300 MiB of weights (swapped on demand)" in said
    assert "20 requests/s, 0.2 device seconds per second" in said
    here, other = [line for line in said.splitlines() if line.startswith("default-")]
    assert here.split()[1] == "here"
    assert "it leaves when this worker is above" in here
    assert "a score below" in other


def test_where_models_take_turns_an_explanation_says_how_much_is_reloaded(run, world):
    pool = world.pool()
    called = [dataclasses.replace(model, rate=1.0, weights_bytes=700 * MIB, replicas=2) for model in pool.packed.models]
    pool.packed = dataclasses.replace(pool.packed, models=called)
    head, here, other = run("explain", "minilm").splitlines()[-3:]
    assert "RELOADS" in head
    assert " 0 B/s " in here
    assert " 726 MiB/s " in other


def test_a_model_is_found_by_what_clients_call_it(run):
    assert "InferenceModel ns/minilm," in run("explain", "team/minilm")


def test_the_explanation_as_json(run):
    found = json.loads(run("explain", "minilm", "--json"))
    assert [candidate["chosen"] for candidate in found["placement"]["candidates"]] == [True, False]
    assert found["obstacle"] == ""


def test_what_keeps_a_placed_model_from_its_workers_now_is_explained_too():
    build = Builder()
    model = build.model_object("minilm")
    world = world_of(model, budget=build.budget_object())
    assert explanation(world, "ns", "minilm")["message"] == ""
    world.pool().obstacles = {model["metadata"]["uid"]: Rejection(Reason.NOT_REQUESTED, "spec.workers.replicas is 0")}
    assert explanation(world, "ns", "minilm")["message"] == "spec.workers.replicas is 0"


def test_an_unknown_model_names_the_nearest(run):
    said = run("explain", "minilmm", code=1)
    assert said == "kubectl ballast: no InferenceModel 'minilmm' in namespace 'ns': did you mean 'minilm'?\n"


def test_without_rights_on_the_operators_pod_the_conditions_are_told_all_the_same(run, kubectl):
    (kubectl / "pods").unlink()
    said = run("explain", "minilm")
    assert "on default-0" in said
    assert said.splitlines()[-1] == "Scores are not known: Error from server (Forbidden): pods is forbidden"


def test_options_are_passed_on_to_kubectl(run, kubectl):
    run("explain", "minilm", "--context", "kind", "--namespace", "ns", "--operator-namespace", "ops")
    calls = [json.loads(line) for line in (kubectl / "calls").read_text().splitlines()]
    assert all(call[-2:] == ["--context", "kind"] for call in calls)
    assert calls[1][1:] == [
        "pods",
        "--selector",
        *calls[1][3:4],
        "--namespace",
        "ops",
        "-o",
        "json",
        "--context",
        "kind",
    ]


def test_a_plan_shows_each_line_and_their_sum(run):
    said = run("plan").splitlines()
    assert said[2].split() == ["LINE", "BYTES", "SOURCE", "KNOB"]
    assert said[4].split() == ["slack", "448Mi", "configured", "device.weights.slackPercent"]
    assert said[5].split() == ["budget", "512Mi"]
    assert said[-1] == "PlanFits True: on 2 workers"


def test_an_unknown_budget_names_the_nearest(run):
    assert "did you mean 'default'?" in run("plan", "defalt", code=1)


def test_without_kubectl_it_says_so(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run("plan", code=1) == "kubectl ballast: kubectl is not on PATH\n"


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(run):
    assert "did you mean '--namespace'?" in run("explain", "--nmaespace=x", "minilm", code=2)


@pytest.mark.parametrize(
    ("verb", "call"),
    [("get", lambda it: it.get("pods")), ("port-forward", lambda it: it.page("ns", "ballast-7", 8004, "/explain", {}))],
)
def test_a_kubectl_that_does_not_answer_is_ended_and_the_likely_cause_is_named(kubectl, verb, call):
    (kubectl / "kubectl").write_text("#!/bin/sh\nexec sleep 600\n")
    message = rf"kubectl {verb} has not answered within 0\.2 s: is the API server reachable\?"
    with pytest.raises(KubectlError, match=message):
        call(Kubectl(seconds=0.2))
