# SPDX-License-Identifier: Apache-2.0
"""The chart on a real API server: it goes in, comes out, and finds its CRDs again."""

from __future__ import annotations

import json
import subprocess

import pytest
from helpers.api_server import kubectl_on_new_server

pytestmark = pytest.mark.apiserver

CRDS = {"inferencemodels.ballast.dev", "weightbudgets.ballast.dev"}
BUDGET = {"apiVersion": "ballast.dev/v1alpha1", "kind": "WeightBudget", "metadata": {"name": "kept"}, "spec": {}}
RESTRICTED = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "ballast-system",
        "labels": {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")},
    },
}


@pytest.fixture(scope="module")
def kubectl():
    with kubectl_on_new_server() as tool:
        tool.succeed("apply", "-f", "-", manifest=RESTRICTED)
        yield tool


@pytest.fixture
def install(helm, chart, kubectl):
    """Runs helm against the server, in one namespace and without hooks: no node runs their Job here."""

    def run(*arguments):
        command = [helm.program, "--kubeconfig", str(kubectl.kubeconfig), "-n", "ballast-system", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def go(verb, *arguments, release="ballast"):
        done = run(verb, release, *([str(chart)] if verb != "uninstall" else []), "--no-hooks", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    go.run = run
    return go


def crds(kubectl):
    return set(kubectl.succeed("get", "crd", "-o", "jsonpath={.items[*].metadata.name}").split())


def test_a_release_comes_back_over_the_crds_it_left_with_every_object(install, kubectl):
    assert "Uninstall in this order" in install("install")
    kubectl.succeed("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    kubectl.succeed("apply", "-f", "-", manifest=BUDGET)

    assert "kept due to the resource policy" in install("uninstall")
    assert crds(kubectl) == CRDS
    assert "not found" in kubectl.fail("-n", "ballast-system", "get", "deployment", "ballast")

    install("install")
    assert kubectl.succeed("get", "wbudget", "-o", "name").split() == ["weightbudget.ballast.dev/kept"]
    kubectl.succeed("-n", "ballast-system", "get", "deployment", "ballast")
    install("uninstall")


def test_a_release_of_another_name_takes_the_crds_over_when_told_to(install, chart, kubectl):
    install("install")
    install("uninstall")
    refused = install.run("install", "other", str(chart), "--no-hooks")
    assert refused.returncode != 0
    assert "invalid ownership metadata" in refused.stderr
    install("install", "--take-ownership", release="other")
    install("uninstall", release="other")
    install("install", "--take-ownership")
    install("uninstall")


def test_crds_go_with_the_release_when_they_are_not_kept(install, kubectl):
    install("install", "--set", "crds.keep=false")
    assert crds(kubectl) == CRDS
    install("uninstall", "--wait")
    assert crds(kubectl) == set()


def test_an_upgrade_brings_the_new_crds(install, kubectl):
    install("install")
    drop = json.dumps([{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}])
    kubectl.succeed("patch", "crd", "weightbudgets.ballast.dev", "--type=json", "-p", drop)
    install("upgrade")
    columns = "jsonpath={.spec.versions[0].additionalPrinterColumns[0].name}"
    assert kubectl.succeed("get", "crd", "weightbudgets.ballast.dev", "-o", columns) == "Workers"
    install("uninstall")


def test_every_object_passes_strict_validation_and_the_restricted_level(helm, kubectl):
    crd_names = {"CustomResourceDefinition"}
    for manifest in helm.render("--set", "replicas=2"):
        if manifest["kind"] in crd_names:
            continue
        done = kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", "-", manifest=manifest)
        assert done.returncode == 0, done.stderr
        assert "PodSecurity" not in done.stderr, done.stderr
