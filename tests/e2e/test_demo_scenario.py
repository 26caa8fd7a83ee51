# SPDX-License-Identifier: Apache-2.0
"""The scenario of `make demo`, each step asserted from outside: kubectl, HTTP, gRPC, metrics."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from ballast_contract import quantities
from e2e.demo import calling, client, looking
from e2e.demo.kube import Kube, StepError, condition, local_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def cells(text, kind):
    """Rows of a printed table of one kind, by column."""
    block = next(part for part in text.split("\n\n") if kind in part)
    header, *rows = block.splitlines()
    starts = [m.start() for m in re.finditer(r"\S+", header)]
    names = header.split()
    return [
        {
            name: row[start : [*starts, len(row)][n + 1]].strip()
            for n, (name, start) in enumerate(zip(names, starts, strict=True))
        }
        for row in rows
    ]


@pytest.fixture
def ballast(world, namespace):
    """`kubectl ballast` as a user calls it: kubectl finds the plugin on PATH."""
    environment = local_environment()
    kube = Kube({**environment, "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"})
    return lambda *words: kube.kubectl("ballast", *words, "--namespace", namespace)


def test_every_column_of_every_model_and_budget_is_filled(world, namespace):
    text = looking.table(world, namespace=namespace)
    models, budgets = cells(text, "inferencemodel.ballast.dev/"), cells(text, "weightbudget.ballast.dev/")
    assert {"RESIDENCY", "STATE", "READY", "COPIES", "SIZE", "POOL", "AGE"} <= set(models[0])
    assert {"WORKERS", "DEVICE", "PINNED", "FREE", "LARGEST", "FRAG", "FITS", "AGE"} <= set(budgets[0])
    assert all(value for row in (*models, *budgets) for value in row.values())


def test_kubectl_wait_returns(world, namespace):
    assert "condition met" in world.kubectl(
        "wait", "-n", namespace, "--for=condition=Ready", "inferencemodel", "--all", "--timeout=60s"
    )


def test_pinned_models_are_on_the_device_and_every_condition_is_present(world, namespace):
    for model in looking.models(world, namespace=namespace):
        assert {c["type"] for c in model["status"]["conditions"]} >= {
            "Accepted",
            "Placed",
            "Loaded",
            "Ready",
            "Degraded",
        }
        assert model["status"]["observedGeneration"] == model["metadata"]["generation"]
        if model["spec"].get("residency") == "device":
            assert model["status"]["residency"] == "device"


def test_the_budgets_plan_sums_to_its_budget_to_the_byte(world, namespace):
    budget = looking.budget(world, namespace=namespace)
    assert sum(quantities.parse_api(str(line["bytes"])) for line in budget["status"]["plan"]) == 384 << 20
    assert condition(budget, "PlanFits")["status"] == "True"


def test_alike_sentences_are_closer_than_others_through_the_models_own_service(world, namespace):
    (_, _, alike), (_, _, first_other), (_, _, second_other) = calling.similarities(world, namespace=namespace)
    assert alike > 0.7
    assert max(first_other, second_other) < 0.2


def test_the_pool_answers_for_every_model_whichever_worker_holds_it(world, namespace):
    models = looking.models(world, namespace=namespace)
    calls = [
        (
            calling.infer_url("default-pool", m["spec"].get("modelName", m["metadata"]["name"]), namespace=namespace),
            calling.request_for(m),
        )
        for m in models
        for _ in range(4)
    ]
    for answer in client.call(world, namespace, calls):
        assert answer["status"] == 200, answer["text"]


def test_compaction_makes_the_free_memory_one_block_and_drops_nothing(world, namespace):
    repack = looking.command(world, "repack", "lastRepack", namespace=namespace)
    assert repack["trigger"] == "request"
    looking.wait_ready(world, print, namespace=namespace)
    before = calling.fragment(world, print, namespace=namespace)
    compaction = looking.command(world, "compact", "lastCompaction", namespace=namespace)
    after = looking.fragmentation(world, namespace=namespace)
    assert looking.size(compaction["largestFreeAfter"]) >= looking.size(compaction["largestFreeBefore"])
    assert compaction["fragmentationPercentBefore"] >= 20
    assert compaction["fragmentationPercentAfter"] == 0
    assert looking.size(compaction["moved"]) > 0
    assert compaction["reloadedModels"] == 0
    moved = sum(after[name]["moved"] - before[name]["moved"] for name in before)
    assert moved == looking.size(compaction["moved"])
    assert [w["evictions"] for w in after.values()] == [w["evictions"] for w in before.values()]
    for answer in calling.call_all(
        world, [m["metadata"]["name"] for m in looking.models(world, namespace=namespace)], namespace=namespace
    ):
        assert calling.outputs(answer)


def test_endpoints_are_exactly_the_workers_that_hold_the_model(world, namespace):
    def differing():
        found = {}
        for model in looking.models(world, namespace=namespace):
            name = model["metadata"]["name"]
            slices = world.get("endpointslices", "-n", namespace, "-l", f"kubernetes.io/service-name={name}")["items"]
            targets = {e["targetRef"]["name"] for s in slices for e in s["endpoints"] or () if e["conditions"]["ready"]}
            holders = {w["name"] for w in model["status"]["workers"]}
            if targets != holders:
                found[name] = (targets, holders)
        return found

    # A worker that a model has left holds it for some seconds more.
    world.wait_for("endpoints and workers are the same", lambda: not differing(), seconds=60)
    assert not differing()


def test_explain_reads_well(world):
    text = world.kubectl("explain", "inferencemodel.spec", "--recursive")
    for field in ("modelName", "budgetRef", "source", "residency", "replicas", "coverage", "batching"):
        assert f"{field}\t" in text or f"{field} " in text
    assert "DESCRIPTION" in world.kubectl("explain", "inferencemodel.spec.residency")


def test_worker_pods_ask_for_a_gpu_and_get_one(world, namespace):
    for pod in looking.worker_pods(world, namespace=namespace):
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        exec_ = world.kubectl(
            "exec",
            "-n",
            namespace,
            pod["metadata"]["name"],
            "--",
            "python3",
            "-c",
            "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])",
        )
        assert exec_.startswith("GPU-")


def test_a_worker_explains_its_decisions_through_its_own_port(world, namespace):
    name = looking.worker_pods(world, namespace=namespace)[0]["metadata"]["name"]
    text = world.kubectl("exec", "-n", namespace, name, "--", "ballast-worker", "explain", "--json")
    decisions = json.loads(text)
    assert decisions
    assert {"model", "verdict"} <= set(decisions[0])


def test_kubectl_ballast_explains_why_a_model_is_on_the_worker_that_its_status_names(ballast, world, namespace):
    looking.command(world, "repack", "lastRepack", namespace=namespace)  # so that what it was made from is true now
    looking.wait_ready(world, print, namespace=namespace)
    model = world.get("inferencemodel.ballast.dev", "minilm", "-n", namespace)
    plan = {
        line["line"]: looking.size(line["bytes"])
        for line in looking.budget(world, namespace=namespace)["status"]["plan"]
    }
    capacity = sum(plan[line] for line in ("code", "pinned weights", "on-demand weights"))
    told = json.loads(ballast("explain", "all-MiniLM-L6-v2", "--json"))
    assert (told["obstacle"], told["placement"]["name"]) == ("", "minilm")
    assert told["status"]["conditions"] == model["status"]["conditions"]
    candidates = {found["worker"]: found for found in told["placement"]["candidates"]}
    assert candidates.keys() == {p["metadata"]["name"] for p in looking.worker_pods(world, namespace=namespace)}
    assert [name for name, found in candidates.items() if found["chosen"]] == model["status"]["assignment"]["workers"]
    assert {found["capacity_bytes"] for found in candidates.values()} == {capacity}
    weights = looking.size(model["status"]["size"]["weights"])
    assert 0 <= weights - told["placement"]["weightsBytes"] < 1 << 20  # the status is rounded up
    (here,) = [line for line in ballast("explain", "minilm").splitlines() if "  here  " in line]
    held = quantities.human(candidates[here.split()[0]]["held_bytes"])
    assert f"{held} of {quantities.human(capacity)}" in here
    with pytest.raises(StepError, match=r"no InferenceModel 'minilmm' in namespace .*: did you mean 'minilm'\?"):
        ballast("explain", "minilmm")


def test_kubectl_ballast_shows_the_plan_of_the_only_budget(ballast, world, namespace):
    budget = looking.budget(world, namespace=namespace)
    assert json.loads(ballast("plan", "--json"))["plan"] == budget["status"]["plan"]
    shown = ballast("plan", "default")
    for line in budget["status"]["plan"]:
        assert re.search(rf"^{line['line']} +{line['bytes']} ", shown, re.MULTILINE)
    assert re.search(r"^budget +384Mi$", shown, re.MULTILINE)
    assert f"PlanFits True: {condition(budget, 'PlanFits')['message']}" in shown
    with pytest.raises(StepError, match=r"no WeightBudget 'defualt' in namespace .*: did you mean 'default'\?"):
        ballast("plan", "defualt")
