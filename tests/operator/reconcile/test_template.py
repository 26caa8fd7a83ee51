# SPDX-License-Identifier: Apache-2.0
"""Worker pods: what they run, and when a change means another pod."""

from __future__ import annotations

import yaml
from helpers.reconcile_objects import Builder

from ballast_contract import config
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.reconcile.template import render
from ballast_operator.reconcile.worker_config import worker_config

IMAGE = "registry.example/worker:1"


def template(name: str = "default", **spec):
    return render(name, WeightBudgetSpec.model_validate(spec), default_image=IMAGE)


def container(found) -> dict:
    [only] = found.pod_spec["containers"]
    return only


def test_the_configuration_is_what_the_worker_reads(tmp_path):
    spec = {
        "workers": {"backend": "cpu", "terminationGracePeriodSeconds": 60},
        "modelStores": [{"persistentVolumeClaim": {"claimName": "models"}}],
        "device": {"budget": "60Gi", "weights": {"slackPercent": 20}, "scratch": "512Mi"},
        "host": {"budget": "2Gi"},
    }
    file = tmp_path / "worker.yaml"
    file.write_text(template(**spec).config_text)
    environment = {"BALLAST_NAME": "default-x", "BALLAST_NAMESPACE": "ns", "BALLAST_NODE": "n"}
    read = config.load(file, environment)
    assert read == worker_config(WeightBudgetSpec.model_validate(spec)).model_copy(
        update={"name": "default-x", "namespace": "ns", "node": "n"}
    )
    assert read.managed
    assert (read.device.budget, read.device.scratch, read.host.budget) == (60 << 30, 512 << 20, 2 << 30)
    assert read.device.weights.slack_percent == 20
    assert str(read.stores["models"]) == "/models/models"
    assert read.serving.grace_seconds == 60


def test_a_percentage_stays_one_and_what_is_left_out_stays_out():
    assert worker_config(WeightBudgetSpec.model_validate({"device": {"budget": "90%"}})).device.budget == "90%"
    assert "budget" not in yaml.safe_load(template().config_text).get("device", {})


def test_a_cuda_worker_asks_for_one_gpu_unless_resources_name_another_extended_resource():
    assert container(template())["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert container(template(workers={"backend": "cpu"}))["resources"] == {}
    other = template(workers={"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1", "memory": "8Gi"}}})
    assert container(other)["resources"] == {"limits": {"nvidia.com/mig-1g.10gb": "1", "memory": "8Gi"}}


def test_a_host_budget_sizes_the_memory_volume_and_none_needs_no_volume():
    def memory(**spec):
        found = [v for v in template(**spec).pod_spec["volumes"] if v["name"] == "host-pool"]
        return found[0]["emptyDir"] if found else None

    assert memory(host={"budget": "1Gi"}) == {"medium": "Memory", "sizeLimit": "1088Mi"}
    assert memory(host={"budget": "auto"}) == {"medium": "Memory"}
    assert memory(host={"budget": "0"}) is None


def test_stores_are_read_only_and_the_executable_store_is_a_folder_of_the_budget():
    found = template(
        name="prod",
        modelStores=[{"persistentVolumeClaim": {"claimName": "a"}}, {"persistentVolumeClaim": {"claimName": "b"}}],
        workers={"executableStore": {"persistentVolumeClaim": {"claimName": "cache"}}},
    )
    mounts = {m["mountPath"]: m for m in container(found)["volumeMounts"]}
    assert mounts["/models/a"]["readOnly"]
    assert mounts["/models/b"]["readOnly"]
    assert mounts["/var/lib/ballast/executables"]["subPath"] == "prod"
    claims = [v["persistentVolumeClaim"] for v in found.pod_spec["volumes"] if "persistentVolumeClaim" in v]
    assert {"claimName": "a", "readOnly": True} in claims
    assert {"claimName": "cache"} in claims


def test_a_worker_on_a_lost_node_is_given_up_after_a_while_unless_the_user_says_otherwise():
    found = template().pod_spec["tolerations"]
    assert {t["key"]: t["tolerationSeconds"] for t in found} == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 600}
    theirs = [t for t in template(workers={"tolerations": [own]}).pod_spec["tolerations"] if t["key"] == own["key"]]
    assert theirs == [own]


def test_spread_constraints_count_the_workers_of_the_pool():
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    [found] = template(workers={"topologySpreadConstraints": [constraint]}).pod_spec["topologySpreadConstraints"]
    assert found["labelSelector"]["matchLabels"]["ballast.dev/budget"] == "default"


def test_the_user_s_variables_win_over_home_and_stay_beside_ours():
    env = {
        v["name"]: v.get("value")
        for v in container(template(workers={"env": [{"name": "HOME", "value": "/h"}]}))["env"]
    }
    assert env["HOME"] == "/h"
    assert set(env) == {"HOME", "TMPDIR", "BALLAST_NAME", "BALLAST_NAMESPACE", "BALLAST_NODE"}


def test_replicas_and_placement_change_no_pod():
    base = template()
    for spec in ({"workers": {"replicas": 9}}, {"placement": {"mode": "all"}}, {"serving": {"addresses": "pool"}}):
        assert (template(**spec).spec_hash, template(**spec).template_hash) == (base.spec_hash, base.template_hash)


def test_what_pods_run_changes_the_spec_hash():
    base = template().spec_hash
    for spec in (
        {"workers": {"image": "other"}},
        {"device": {"budget": "1Gi"}},
        {"host": {"budget": "1Gi"}},
        {"modelStores": [{"persistentVolumeClaim": {"claimName": "a"}}]},
        {"workers": {"podMetadata": {"labels": {"a": "b"}}}},
    ):
        assert template(**spec).spec_hash != base


def test_another_default_image_changes_the_template_hash_alone():
    spec = WeightBudgetSpec()
    one, two = render("b", spec, default_image="one"), render("b", spec, default_image="two")
    assert one.spec_hash == two.spec_hash
    assert one.template_hash != two.template_hash


def test_a_default_that_is_spelled_out_is_the_same_wish():
    assert template(device={"reserve": "1536Mi"}).spec_hash == template().spec_hash


def test_a_pod_carries_its_hashes_and_the_token_it_was_made_with(build: Builder):
    found = template()
    pod = found.pod("default-x", namespace="ns", owner=[], update_token="t")
    annotations = pod["metadata"]["annotations"]
    assert annotations["ballast.dev/spec-hash"] == found.spec_hash
    assert annotations["ballast.dev/template-hash"] == found.template_hash
    assert annotations["ballast.dev/update-token"] == "t"
    assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "ballast-operator"


def test_labels_of_the_user_never_replace_ours():
    labels = {"ballast.dev/budget": "stolen", "team": "a"}
    found = template(workers={"podMetadata": {"labels": labels}}).metadata["labels"]
    assert (found["ballast.dev/budget"], found["team"]) == ("default", "a")
