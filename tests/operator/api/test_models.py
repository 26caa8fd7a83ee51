# SPDX-License-Identifier: Apache-2.0
"""The models of both kinds: what they fill in, what they refuse and in which words."""

from __future__ import annotations

import pydantic
import pytest

from ballast_contract import validation
from ballast_operator.api.inferencemodel import InferenceModel, InferenceModelSpec
from ballast_operator.api.weightbudget import WeightBudget, WeightBudgetSpec

MODEL = {"budgetRef": {"name": "default"}, "source": {"uri": "pvc://models/minilm"}}


def model(**spec):
    return InferenceModel.model_validate({"metadata": {"name": "minilm", "managedFields": []}, "spec": MODEL | spec})


def budget(**spec):
    return WeightBudget.model_validate({"metadata": {"name": "default"}, "spec": spec})


def complaint(kind, spec):
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate(spec)
    return validation.describe(caught.value, kind)


def test_a_model_is_called_by_its_name_unless_it_says_otherwise():
    assert model().served_name == "minilm"
    assert model(modelName="all-MiniLM-L6-v2").served_name == "all-MiniLM-L6-v2"


def test_a_model_with_the_least_is_one_swapped_copy():
    spec = model().spec
    assert (spec.residency, spec.replicas, spec.coverage) == ("unpinned", 1, "replicas")
    assert (spec.batching.max_size, spec.batching.max_delay_milliseconds) == (0, 0)


def test_a_budget_without_a_spec_has_every_default():
    spec = WeightBudget.model_validate({"metadata": {"name": "default"}}).spec
    assert spec.workers.replicas == 1
    assert spec.workers.termination_grace_period_seconds == 300
    assert (spec.device.weights.max_percent, spec.device.weights.slack_percent) == (100, 10)
    assert (spec.device.budget, spec.device.reserve, spec.device.scratch) == (None, "1536Mi", "auto")
    assert (spec.host.budget, spec.host.sharing, spec.host.file_mode) == ("auto", "node", "0660")
    assert (spec.placement.mode, spec.placement.hysteresis_percent) == ("packed", 10)
    repack, compaction = spec.placement.repack, spec.placement.compaction
    assert (repack.first_after_compute_seconds, repack.every_compute_seconds) == (60, 300)
    assert (compaction.mode, compaction.every_repacks) == ("disabled", 1)


def test_sizes_may_be_written_as_yaml_numbers():
    assert budget(host={"budget": 0}).spec.host.budget == "0"


@pytest.mark.parametrize("size", ["60GB", "48g", "1.5Ti", "-1", "", "60 Gi", True])
def test_a_size_of_another_spelling_is_refused_with_the_right_one(size):
    text = complaint(WeightBudgetSpec, {"device": {"reserve": size}})
    assert "device.reserve" in text
    if isinstance(size, str) and size:
        assert f"'{size}' is not a size: write digits and Ki, Mi, Gi or Ti, as in 1536Mi or 60Gi" in text


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("device", "budget", "90%"),
        ("device", "budget", "60Gi"),
        ("device", "scratch", "auto"),
        ("device", "scratch", "48Mi"),
        ("host", "budget", "unlimited"),
        ("host", "budget", "auto"),
    ],
)
def test_sizes_take_the_words_of_their_field(section, key, value):
    assert getattr(getattr(budget(**{section: {key: value}}).spec, section), key) == value


@pytest.mark.parametrize("size", ["1025Ti", "1048577Gi", "9999999999999Ti", 1125899906842625])
def test_a_size_beyond_the_largest_that_a_worker_takes_is_refused(size):
    for section, key in (("device", "budget"), ("device", "reserve"), ("device", "scratch"), ("host", "budget")):
        text = complaint(WeightBudgetSpec, {section: {key: size}})
        assert text.startswith(f"'{section}.{key}': '{size}' is too large: the most is 1024Ti")
    assert budget(host={"budget": "1024Ti"}).spec.host.budget == "1024Ti"


@pytest.mark.parametrize("mode", ["0000", "0200", "0400", "660"])
def test_the_worker_reads_and_writes_the_files_of_its_pool(mode):
    assert f"'{mode}' is not a file mode: write four octal digits in quotes with which the owner" in complaint(
        WeightBudgetSpec, {"host": {"fileMode": mode}}
    )


@pytest.mark.parametrize("value", ["101%", "9.5%", "%", "auto"])
def test_a_percentage_out_of_range_is_refused(value):
    assert f"'{value}' is not a size" in complaint(WeightBudgetSpec, {"device": {"budget": value}})


@pytest.mark.parametrize(
    "uri",
    [
        "pvc://models/minilm",
        "pvc://team.models/a/b.c/..d/...",
        "pvc://models/My Model é",
        "file:///opt/models/minilm",
    ],
)
def test_a_uri_names_a_place_in_a_store_or_in_the_image(uri):
    assert model(source={"uri": uri}).spec.source.uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/minilm",
        "pvc://models",
        "pvc://models/",
        "pvc:///minilm",
        "pvc://models/a/../b",
        "pvc://models/..",
        "pvc://models/./a",
        "pvc://models//a",
        "pvc://models/a/",
        "pvc://models/a?b",
        "pvc://models/a\\b",
        "pvc://models/a\nb",
        "pvc://Models/a",
        "file://host/a",
        "/a",
    ],
)
def test_a_uri_that_leads_elsewhere_is_refused(uri):
    assert "write pvc://<claim>/<path>" in complaint(InferenceModelSpec, MODEL | {"source": {"uri": uri}})


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "minilm/1-layer", "v1.0", "_private", "a"])
def test_a_model_name_may_have_dots_and_slashes(name):
    assert model(modelName=name).served_name == name


@pytest.mark.parametrize("name", ["", "/a", "a/", "-a", "a b", "a%2Fb", "é"])
def test_a_model_name_that_no_path_could_carry_is_refused(name):
    assert "modelName" in complaint(InferenceModelSpec, MODEL | {"modelName": name})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"residencyy": "device"}, "unknown key 'residencyy': did you mean 'residency'?"),
        ({"batching": {"maxsize": 3}}, "unknown key 'batching.maxsize': did you mean 'batching.maxSize'?"),
        ({"source": {"uri": "pvc://m/a", "replicas": 1}}, "unknown key 'source.replicas': known keys are digest, uri"),
        ({"pin_to_gpu": True}, "unknown key 'pin_to_gpu': its name here is residency: device"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(spec, words):
    assert words in complaint(InferenceModelSpec, MODEL | spec)


def test_an_unknown_key_of_a_budget_is_refused_by_its_first_name():
    assert "its name here is device.budget" in complaint(WeightBudgetSpec, {"device": {"mem_fraction": 0.9}})


def test_a_status_of_another_release_is_read_as_far_as_it_is_known():
    found = InferenceModel.model_validate(
        {"metadata": {"name": "m"}, "spec": MODEL, "status": {"residency": "host", "added": {"later": 1}}}
    )
    assert found.status.residency == "host"
    assert found.status.ready_replicas is None


def test_metadata_keeps_what_is_read():
    found = InferenceModel.model_validate(
        {
            "metadata": {"name": "m", "namespace": "team", "uid": "u", "generation": 3, "deletionTimestamp": "now"},
            "spec": MODEL,
        }
    )
    assert found.metadata.key == "team/m"
    assert found.metadata.deleting
    assert not model().metadata.deleting


def test_resources_take_kubernetes_quantities():
    limits = {"memory": "8Gi", "cpu": "500m", "nvidia.com/gpu": 1}
    assert budget(workers={"resources": {"limits": limits}}).spec.workers.resources.limits["nvidia.com/gpu"] == "1"
    text = complaint(WeightBudgetSpec, {"workers": {"resources": {"limits": {"memory": "8 GB"}}}})
    assert "'8 GB' is not a Kubernetes quantity" in text


@pytest.mark.parametrize(
    ("namespace", "right"), [("ingress", True), ("7-of-9", True), ("team.a", False), ("-a", False)]
)
def test_the_namespace_of_a_gateway_is_the_name_of_one(namespace, right):
    spec = {"serving": {"gatewayRef": {"name": "front.door", "namespace": namespace}}}
    if right:
        assert WeightBudgetSpec.model_validate(spec).serving.gateway_ref.namespace == namespace
    else:
        assert f"'{namespace}' is not the name of a namespace" in complaint(WeightBudgetSpec, spec)
