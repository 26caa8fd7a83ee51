# SPDX-License-Identifier: Apache-2.0
"""What kubectl really prints of two pools of one name is read by `ballast-simulate`, for one of them at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.api_server import Kubectl

from ballast_operator.edge.simulate import main

pytestmark = pytest.mark.apiserver

NAMESPACES = ("simulated-one", "simulated-two")
PLAN = [
    {"line": "context", "bytes": "24Mi"},
    {"line": "code", "bytes": "8Mi"},
    {"line": "scratch", "bytes": "80Mi", "source": "measured"},
]


@pytest.fixture
def exported(server: Kubectl, tmp_path: Path, monkeypatch):
    """budget.yaml of one pool, and models.json of all."""
    monkeypatch.chdir(tmp_path)
    for namespace in NAMESPACES:
        server.succeed("create", "namespace", namespace)
        model = {"budgetRef": {"name": "default"}, "source": {"uri": "pvc://models/a"}}
        for kind, name, spec in (
            ("WeightBudget", "default", {"device": {"budget": "256Mi"}}),
            ("InferenceModel", "a", model),
        ):
            body = {"apiVersion": "ballast.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
            server.succeed("apply", "-n", namespace, "-f", "-", manifest=body)
        for name, status in (
            ("weightbudget.ballast.dev/default", {"plan": PLAN}),
            ("inferencemodel.ballast.dev/a", {"size": {"weights": "200Mi"}}),
        ):
            patch = json.dumps({"status": status})
            server.succeed("patch", "-n", namespace, name, "--subresource=status", "--type=merge", "-p", patch)
    budget = server.succeed("get", "-n", NAMESPACES[0], "weightbudget.ballast.dev", "default", "-o", "yaml")
    Path("budget.yaml").write_text(budget)
    models = json.loads(server.succeed("get", "-A", "inferencemodels.ballast.dev", "-o", "json"))
    models["items"] = [item for item in models["items"] if item["metadata"]["namespace"] in NAMESPACES]
    Path("models.json").write_text(json.dumps(models))
    Path("calls.csv").write_text("0,a\n")
    yield
    server.succeed("delete", "namespace", *NAMESPACES, "--wait=false")


def test_a_budget_that_was_exported_and_edited_gives_another_answer(exported, capsys):
    def played():
        main(["--budget", "budget.yaml", "--models", "models.json", "--trace", "calls.csv", "--json"])
        return json.loads(capsys.readouterr().out)

    small = played()
    text = Path("budget.yaml").read_text()
    assert "    budget: 256Mi\n" in text
    Path("budget.yaml").write_text(text.replace("    budget: 256Mi\n", "    budget: 512Mi\n"))
    large = played()
    assert (small["models"], small["models_left_out"]) == (1, 1)
    assert (small["refused"], large["refused"]) == ({"a": 1}, {})
