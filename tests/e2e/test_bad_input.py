# SPDX-License-Identifier: Apache-2.0
"""Bad input to the whole product: a condition or refusal names fault and remedy, and everything else keeps serving."""

from __future__ import annotations

import json

import pytest
from helpers.broken_bundles import make

from e2e.demo import calling, client, installing, looking
from e2e.demo.kube import StepError, condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STORE = "e2e-broken"


@pytest.fixture(scope="module", autouse=True)
def store(world):
    make(installing.MODELS / STORE)


@pytest.fixture(autouse=True)
def everything_else_keeps_serving(world, namespace):
    yield
    for left, right, similarity in calling.similarities(world, namespace=namespace)[:1]:
        assert similarity > 0.7, (left, right)


def model(name, uri, **spec):
    return {
        "apiVersion": "ballast.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"budgetRef": {"name": "default"}, "source": {"uri": uri}, **spec},
    }


@pytest.fixture
def applied(world, namespace):
    """Apply objects and delete them afterwards."""
    names = []

    def apply(obj, *argv):
        names.append(
            (
                f"{obj['kind'].lower()}" + (".ballast.dev" if "ballast" in obj["apiVersion"] else ""),
                obj["metadata"]["name"],
            )
        )
        return world.apply(json.dumps(obj), "-n", namespace, *argv)

    yield apply
    for kind, name in names:
        world.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", "--timeout=30s")


def wait_condition(world, namespace, name, kind, status, reason, *, seconds=600):
    def answer():
        found = condition(world.get("inferencemodels.ballast.dev", name, "-n", namespace), kind)
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    return world.wait_for(f"{name}: {kind}={status}, {reason}", answer, seconds=seconds)


@pytest.mark.parametrize(
    ("bundle", "kind", "reason", "words"),
    [
        ("no-such-folder", "Ready", "SourceNotFound", ("no-such-folder",)),
        ("truncated-weights", "Ready", "BundleInvalid", ("weights.safetensors",)),
        ("lying-manifest", "Ready", "BundleInvalid", ("x", "5", "4")),
        ("larger-than-the-device", "Ready", "InsufficientDeviceMemory", ("device.budget",)),
        ("compiler-killer", "Ready", "LoadFailedPermanent", ("SIGSEGV",)),
    ],
)
def test_a_bundle_that_cannot_serve_is_refused_with_the_fault_named(
    world, namespace, applied, bundle, kind, reason, words
):
    """kserve/kserve#3262, Ready although nothing is loaded."""
    applied(model(bundle, f"pvc://models/{STORE}/{bundle}"))
    found = wait_condition(world, namespace, bundle, kind, "False", reason)
    assert all(word in found["message"] for word in words), found["message"]
    wide = world.kubectl("get", "inferencemodels.ballast.dev", bundle, "-n", namespace, "-o", "wide")
    assert reason in wide


def test_a_misspelled_field_is_refused_by_kubectl_by_name(world, namespace, applied):
    """kubernetes/kubernetes#111074, a misspelled key is dropped without a word."""
    with pytest.raises(StepError, match=r"unknown field \"spec.residencey\""):
        applied(model("misspelled", "pvc://models/crepe-tiny", residencey="device"))


def test_a_misspelled_field_from_a_client_without_validation_is_reported_with_the_nearest(world, namespace, applied):
    """The API server prunes what it does not know."""
    applied(model("pruned", f"pvc://models/{STORE}/good", residencey="device"), "--validate=ignore")
    found = wait_condition(world, namespace, "pruned", "Degraded", "True", "UnknownField")
    assert "residencey" in found["message"]
    assert "residency" in found["message"]
    wait_condition(world, namespace, "pruned", "Ready", "True", "Ready")


def test_an_unknown_budget_is_named(world, namespace, applied):
    applied(model("lost", f"pvc://models/{STORE}/good", budgetRef={"name": "nothing"}))
    assert "nothing" in wait_condition(world, namespace, "lost", "Accepted", "False", "BudgetNotFound")["message"]


def test_a_store_that_the_budget_does_not_list_is_named(world, namespace, applied):
    applied(model("elsewhere", "pvc://other/good"))
    assert (
        "other" in wait_condition(world, namespace, "elsewhere", "Accepted", "False", "ModelStoreNotFound")["message"]
    )


@pytest.mark.parametrize("uri", ["pvc://model/e2e-broken/good", "pvc://models/e2e-broken/godo"])
def test_a_mistake_in_the_uri_of_a_running_model_leaves_the_old_bundle_serving(world, namespace, applied, uri):
    applied(model("running", f"pvc://models/{STORE}/good"))
    wait_condition(world, namespace, "running", "Ready", "True", "Ready")
    applied(model("running", uri))
    found = wait_condition(world, namespace, "running", "Degraded", "True", "SourceNotFound")
    assert uri in found["message"]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    answer = client.call(world, namespace, [(calling.infer_url("running", "running", namespace=namespace), body)])[0]
    assert calling.outputs(answer) == [1, 2, 3, 4]


def test_a_path_that_leaves_the_store_is_refused(world, namespace, applied):
    with pytest.raises(StepError, match=r"\.\."):
        applied(model("escape", "pvc://models/../../etc"))


def test_the_younger_of_two_models_with_one_name_is_refused_and_the_older_serves(world, namespace, applied):
    applied(model("twin", f"pvc://models/{STORE}/good", modelName="all-MiniLM-L6-v2"))
    found = wait_condition(world, namespace, "twin", "Accepted", "False", "NameConflict")
    assert "minilm" in found["message"]


def test_a_name_of_63_characters_serves(world, namespace, applied):
    name = "m" + "o" * 61 + "x"
    assert len(name) == 63
    applied(model(name, f"pvc://models/{STORE}/good"))
    wait_condition(world, namespace, name, "Ready", "True", "Ready")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    assert calling.outputs(
        client.call(world, namespace, [(calling.infer_url(name, name, namespace=namespace), body)])[0]
    ) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["m" * 64, "with.dots", "1-digit-first"])
def test_a_name_that_cannot_name_a_service_is_refused_with_the_rule(world, namespace, applied, name):
    with pytest.raises(StepError, match="63"):
        applied(model(name, f"pvc://models/{STORE}/good"))


def test_dots_and_slashes_belong_into_the_model_name(world, namespace, applied):
    applied(model("dotted", f"pvc://models/{STORE}/good", modelName="org/with.dots"))
    wait_condition(world, namespace, "dotted", "Ready", "True", "Ready")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [4, 3, 2, 1]}]}
    url = f"http://dotted.{namespace}:8000/v2/models/org/with.dots/infer"
    assert calling.outputs(client.call(world, namespace, [(url, body)])[0]) == [4, 3, 2, 1]


def test_a_users_own_service_of_the_models_name_is_left_alone(world, namespace, applied):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "mine"}},
    }
    applied(service)
    before = world.get("service", "taken", "-n", namespace)
    applied(model("taken", f"pvc://models/{STORE}/good"))
    wait_condition(world, namespace, "taken", "Degraded", "True", "ServiceConflict")
    after = world.get("service", "taken", "-n", namespace)
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_models_of_a_deleted_budget_say_so_and_recover_when_it_is_back(world, namespace, applied):
    """kserve/kserve#6154, something that is referred to was deleted first."""
    budget = json.loads(json.dumps(looking.budget(world, namespace=namespace)))
    second = {
        "apiVersion": budget["apiVersion"],
        "kind": budget["kind"],
        "metadata": {"name": "second"},
        "spec": {**budget["spec"], "workers": {**budget["spec"]["workers"], "replicas": 1}},
    }
    applied(second)
    applied(model("orphan", f"pvc://models/{STORE}/good", budgetRef={"name": "second"}))
    wait_condition(world, namespace, "orphan", "Ready", "True", "Ready")
    world.kubectl("delete", "weightbudget.ballast.dev", "second", "-n", namespace, "--timeout=60s")
    wait_condition(world, namespace, "orphan", "Accepted", "False", "BudgetNotFound")
    applied(second)
    wait_condition(world, namespace, "orphan", "Ready", "True", "Ready")
