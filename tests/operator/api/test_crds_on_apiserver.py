# SPDX-License-Identifier: Apache-2.0
"""Both kinds on a real API server: what it fills in, what it refuses and in which words."""

from __future__ import annotations

import json

import pytest
import yaml

from ballast_operator.api.inferencemodel import InferenceModel
from ballast_operator.api.weightbudget import WeightBudget

pytestmark = pytest.mark.apiserver


def model(name, **spec):
    return {
        "apiVersion": "ballast.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"budgetRef": {"name": "default"}, "source": {"uri": "pvc://models/minilm"}} | spec,
    }


def budget(name, **spec):
    return {
        "apiVersion": "ballast.dev/v1alpha1",
        "kind": "WeightBudget",
        "metadata": {"name": name},
        "spec": spec,
    }


def refused(kubectl, manifest):
    return kubectl.fail("create", "--dry-run=server", "-f", "-", manifest=manifest)


def accepted(kubectl, manifest):
    return json.loads(kubectl.succeed("create", "--dry-run=server", "-o", "json", "-f", "-", manifest=manifest))


def test_the_server_fills_in_the_same_defaults_as_the_models(kubectl):
    stored = accepted(kubectl, model("plain"))
    written = InferenceModel.model_validate(stored).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert stored["spec"] == written
    stored = accepted(kubectl, budget("plain"))
    written = WeightBudget.model_validate(stored).spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"model_stores": True}
    )
    for empty in ("imagePullSecrets", "env", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"):
        assert not written["workers"].pop(empty)
    for section, empties in (("resources", ("requests", "limits")), ("podMetadata", ("labels", "annotations"))):
        for empty in empties:
            assert not written["workers"][section].pop(empty)
    assert stored["spec"] == written


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (model("m", residencyy="device"), "spec.residencyy"),
        (model("m", source={"uri": "pvc://models/a", "digests": "x"}), "spec.source.digests"),
        (budget("b", workers={"replica": 2}), "spec.workers.replica"),
        (budget("b", device={"weights": {"maxPercent": 90, "slack": 10}}), "spec.device.weights.slack"),
        (budget("b", device={"maxPercent": 90}), "spec.device.maxPercent"),
        (budget("b", placement={"compaction": {"everyRepack": 3}}), "spec.placement.compaction.everyRepack"),
    ],
)
def test_a_misspelled_field_is_refused_by_name(kubectl, manifest, field):
    assert f'unknown field "{field}"' in refused(kubectl, manifest)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (model("m", source={"uri": "s3://b/x"}), "'s3://b/x' is not a place of a bundle: write pvc://<claim>/<path>"),
        (model("m", source={"uri": "pvc://models/../x"}), "'pvc://models/../x' is not a place of a bundle"),
        (model("m", source={"uri": "pvc://m/x", "digest": "abc"}), "'abc' is not a digest: write sha256:"),
        (model("m", modelName="a b"), "'a b' is not a model name"),
        (model("m", modelName="a/../b"), "'a/../b' is not a model name"),
        (model("m", modelName="x/versions/1"), "modelName has a part named versions, infer or ready"),
        (model("m", replicas=3, coverage="allWorkers"), "replicas is above 1, but coverage allWorkers"),
        (model("m", replicas=1001), "should be less than or equal to 1000"),
        (model("m", residency="pinned"), 'supported values: "unpinned", "system", "device"'),
        (budget("b", device={"budget": "60GB"}), "'60GB' is not a size: write digits and Ki, Mi, Gi or Ti"),
        (budget("b", device={"budget": "101%"}), "or a whole percentage, as in 90%"),
        (budget("b", host={"budget": "none"}), "or auto, or unlimited"),
        (budget("b", device={"budget": "1025Ti"}), "'1025Ti' is too large: the most is 1024Ti"),
        (budget("b", device={"reserve": 1125899906842625}), "'1125899906842625' is too large: the most is 1024Ti"),
        (budget("b", device={"scratch": "9999999999999Gi"}), "'9999999999999Gi' is too large"),
        (budget("b", device={"budget": -5}), "'-5' is not a size"),
        (budget("b", host={"budget": "1048577Gi"}), "'1048577Gi' is too large"),
        (
            budget("b", host={"fileMode": "0400"}),
            "'0400' is not a file mode: write four octal digits in quotes with which",
        ),
        (budget("b", host={"fileMode": "999"}), "'999' is not a file mode: write four octal digits in quotes"),
        (
            budget("b", serving={"gatewayRef": {"name": "front", "namespace": "team.a"}}),
            "is not the name of a namespace",
        ),
        (budget("b", workers={"runAsUser": 0}), "should be greater than or equal to 1"),
        (budget("b", placement={"compaction": {"mode": "eager"}}), 'supported values: "disabled", "lazy"'),
        (
            budget("b", modelStores=[{"persistentVolumeClaim": {"claimName": "m"}}] * 2),
            "modelStores names a claim twice",
        ),
        (
            budget("b", workers={"executableStore": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "x"}}}),
            "executableStore has emptyDir and persistentVolumeClaim: keep one of them",
        ),
        (
            budget("b", workers={"env": [{"name": "BALLAST_DEVICE_BUDGET", "value": "1g"}]}),
            "'BALLAST_DEVICE_BUDGET' begins with BALLAST_: the worker's own settings are fields of this object",
        ),
        (
            budget("b", workers={"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]}),
            "env 'A' has value and valueFrom: keep one of them",
        ),
        (
            budget("b", workers={"env": [{"name": "A", "valueFrom": {}}]}),
            "valueFrom names one of secretKeyRef, configMapKeyRef and fieldRef",
        ),
        (budget("b", workers={"resources": {"limits": {"memory": "8 GB"}}}), "'8 GB' is not a Kubernetes quantity"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_with_value_and_limit(kubectl, manifest, words):
    assert words in refused(kubectl, manifest)


@pytest.mark.parametrize(
    "manifest",
    [
        model("m", modelName="acme/minilm-v2.1", replicas=0, coverage="allWorkers"),
        model("m", source={"uri": "file:///opt/models/x", "digest": "sha256:" + "a" * 64}),
        budget("b", host={"budget": 0}, device={"budget": "90%", "scratch": 52428800}),
        budget(
            "b",
            workers={
                "replicas": 4,
                "backend": "cpu",
                "image": "worker:1",
                "imagePullSecrets": [{"name": "registry"}],
                "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": 1}},
                "env": [
                    {"name": "XLA_FLAGS", "value": "--xla_a=1"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
                ],
                "nodeSelector": {"gpu": "h200"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
                },
                "topologySpreadConstraints": [
                    {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "podMetadata": {"labels": {"team": "a"}, "annotations": {"note": "x" * 300}},
                "runAsUser": 12345,
                "fsGroup": 12345,
                "executableStore": {"persistentVolumeClaim": {"claimName": "executables"}},
            },
            modelStores=[{"persistentVolumeClaim": {"claimName": n}} for n in ("a", "b")],
        ),
    ],
)
def test_what_the_documents_offer_is_accepted_and_read_back(kubectl, manifest):
    stored = accepted(kubectl, manifest)
    kind = {"InferenceModel": InferenceModel, "WeightBudget": WeightBudget}[stored["kind"]]
    kind.model_validate(stored)


def test_the_samples_are_accepted(kubectl, samples):
    for text in samples:
        for manifest in yaml.safe_load_all(text):
            accepted(kubectl, manifest)


@pytest.mark.parametrize("name", ["a", "minilm-2", "a" * 63])
def test_a_model_may_have_a_name_of_63_characters(kubectl, name):
    assert accepted(kubectl, model(name))["metadata"]["name"] == name


@pytest.mark.parametrize("name", ["a" * 64, "all.minilm", "7b"])
def test_a_model_whose_name_could_not_name_a_service_is_refused(kubectl, name):
    assert f"metadata.name '{name}' must be of lower-case letters" in refused(kubectl, model(name))


def test_a_budget_leaves_room_in_its_name_for_that_of_its_service(kubectl):
    assert accepted(kubectl, budget("a" * 55))
    assert "at most 55 characters, because a WeightBudget names a Service" in refused(kubectl, budget("a" * 56))


def test_a_model_stays_with_its_budget(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=model("stays"))
    kubectl.succeed("apply", "-f", "-", manifest=model("stays", source={"uri": "pvc://models/other"}, replicas=2))
    text = kubectl.fail("apply", "-f", "-", manifest=model("stays", budgetRef={"name": "other"}))
    assert "budgetRef cannot change: it is 'default' and not 'other'; create another InferenceModel" in text


def test_a_pool_scales_through_the_scale_subresource(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=budget("scaled", workers={"replicas": 2}))
    status = {"status": {"replicas": 2, "selector": "ballast.dev/budget=scaled"}}
    kubectl.succeed("patch", "wbudget", "scaled", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    kubectl.succeed("scale", "wbudget/scaled", "--replicas=5")
    scale = json.loads(
        kubectl.succeed("get", "--raw", "/apis/ballast.dev/v1alpha1/namespaces/default/weightbudgets/scaled/scale")
    )
    assert scale["spec"] == {"replicas": 5}
    assert scale["status"] == {"replicas": 2, "selector": "ballast.dev/budget=scaled"}


CONDITION = {
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "reason": "Ready",
    "message": "all is well",
    "status": "True",
}


def test_columns_show_where_the_weights_are(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=model("shown", residency="device"))
    status = {
        "observedGeneration": 1,
        "residency": "device",
        "readyReplicas": 2,
        "workerNames": "default-a, default-b",
        "size": {"weights": "87Mi", "measured": True},
        "loadMilliseconds": 12,
        "workers": [{"name": "default-a", "tier": "device"}, {"name": "default-b", "tier": "host"}],
        "assignment": {"workers": ["default-a"], "generation": 3},
        "conditions": [CONDITION | {"type": "Ready"}],
    }
    patch = json.dumps({"status": status})
    kubectl.succeed("patch", "imodel", "shown", "--subresource=status", "--type=merge", "-p", patch)
    row = kubectl.succeed("get", "imodel", "shown", "--no-headers", "-o", "wide").split()
    assert row[:7] == ["shown", "device", "device", "True", "2", "87Mi", "default"]
    assert row[8:] == ["default-a,", "default-b", "12", "Ready", "all", "is", "well"]


def test_columns_of_a_pool_show_its_memory(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=budget("memory"))
    device = {"budget": "60Gi", "pinned": "1Gi", "free": "20Gi", "largestFree": "10Gi", "fragmentationPercent": 50}
    status = {"readyReplicas": 2, "device": device, "conditions": [CONDITION | {"type": "PlanFits"}]}
    patch = json.dumps({"status": status})
    kubectl.succeed("patch", "wbudget", "memory", "--subresource=status", "--type=merge", "-p", patch)
    row = kubectl.succeed("get", "wbudget", "memory", "--no-headers").split()
    assert row[:8] == ["memory", "2", "60Gi", "1Gi", "20Gi", "10Gi", "50", "True"]


def test_models_are_selected_by_their_budget(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=model("elsewhere", budgetRef={"name": "elsewhere"}))
    found = kubectl.succeed("get", "imodel", "--field-selector", "spec.budgetRef.name=elsewhere", "-o", "name")
    assert found.split() == ["inferencemodel.ballast.dev/elsewhere"]


def test_both_kinds_are_of_one_category(kubectl):
    kubectl.succeed("apply", "-f", "-", manifest=model("in-category"))
    assert "inferencemodel.ballast.dev/in-category" in kubectl.succeed("get", "ballast", "-o", "name")


def test_explain_reads_well(kubectl):
    text = kubectl.succeed("explain", "weightbudget.spec.device")
    assert "budget is the device memory of the whole worker process" in " ".join(text.split())
    assert "allocator" in text
    assert "-required-" in kubectl.succeed("explain", "inferencemodel.spec", "--recursive")
