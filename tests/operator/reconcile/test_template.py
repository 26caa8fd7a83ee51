# SPDX-License-Identifier: Apache-2.0
"""Worker pods: what they run, and when a change means another pod."""

from __future__ import annotations

import pytest
import yaml
from helpers.reconcile_objects import Builder

from ballast_contract import loading
from ballast_operator.api.pods import memory_bytes
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.reconcile.host_memory import Place
from ballast_operator.reconcile.template import Template, render
from ballast_operator.reconcile.worker_config import worker_config

IMAGE = "registry.example/worker:1"
OPERATOR = "registry.example/operator:1"


def template(name: str = "default", *, image: str = IMAGE, **spec) -> Template:
    place = Place("ns", name, "uid-1")
    return render(place, WeightBudgetSpec.model_validate(spec), default_image=image, operator_image=OPERATOR)


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
    read = loading.load(file, environment)
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

    assert memory(host={"budget": "1Gi", "sharing": "none"}) == {"medium": "Memory", "sizeLimit": "1088Mi"}
    assert memory(host={"budget": "auto", "sharing": "none"}) == {"medium": "Memory"}
    assert memory(host={"budget": "0", "sharing": "none"}) is None
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
    one, two = template(image="one"), template(image="two")
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


PRIVATE = {"host": {"budget": "1Gi", "sharing": "none"}}
SHARED = {"host": {"budget": "1Gi", "sharing": "node"}}


def volume(found: Template) -> dict:
    [only] = [v for v in found.pod_spec["volumes"] if v["name"] == "host-pool"]
    return only


def test_a_private_pool_asks_for_nothing_that_the_restricted_level_forbids():
    found = template(**PRIVATE).pod_spec
    assert "initContainers" not in found
    assert "supplementalGroups" not in found["securityContext"]
    assert not any("hostPath" in v for v in found["volumes"])


def test_workers_of_a_node_mount_the_folder_of_their_own_budget_and_no_other():
    found = template("prod", **SHARED)
    assert volume(found)["hostPath"] == {"path": "/dev/shm/ballast", "type": "DirectoryOrCreate"}
    [mount] = [m for m in container(found)["volumeMounts"] if m["name"] == "host-pool"]
    assert mount == {"name": "host-pool", "mountPath": "/dev/shm/ballast", "subPath": "ns.prod.uid-1"}


def test_the_container_as_root_is_the_operators_image_with_two_capabilities_whatever_image_the_workers_run():
    found = template(**SHARED, workers={"image": "evil:1", "runAsUser": 7})
    [init] = found.pod_spec["initContainers"]
    assert init["image"] == OPERATOR
    assert init["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]},
    }
    assert container(found)["securityContext"]["runAsNonRoot"]
    assert container(found)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_group_is_the_namespaces_and_the_folder_gets_it_with_the_mode_of_the_files():
    found = template(host={"budget": "1Gi", "fileMode": "0640"})
    [group] = found.pod_spec["securityContext"]["supplementalGroups"]
    [init] = found.pod_spec["initContainers"]
    assert init["args"] == ["/dev/shm/ballast", "ns.default.uid-1", "--group", str(group), "--file-mode", "0640"]
    assert 1 << 30 <= group < 1 << 31
    assert Place("ns", "other", "uid-2").group == group
    assert Place("elsewhere", "default", "uid-1").group != group


def test_a_shared_pool_is_the_default_and_a_budget_of_nothing_needs_none():
    assert template().shares_host_pool
    assert not template(host={"budget": "0"}).shares_host_pool


@pytest.mark.parametrize("host", [PRIVATE, SHARED])
def test_memory_is_the_process_and_beside_it_the_budget_in_the_limit_and_a_part_of_it_in_the_request(host):
    def resources(replicas, **memory):
        given = {key: {"memory": value} for key, value in memory.items()}
        return container(template(**host, workers={"backend": "cpu", "replicas": replicas, "resources": given}))[
            "resources"
        ]

    assert resources(4, requests="1Gi", limits="3Gi") == {
        "requests": {"memory": "1280Mi"},
        "limits": {"memory": "4096Mi"},
    }
    assert resources(1, limits="2G") == {"requests": {"memory": "2932Mi"}, "limits": {"memory": "2932Mi"}}
    assert resources(2) == {"requests": {"memory": "512Mi"}}
    assert resources(0) == {"requests": {"memory": "1024Mi"}}


def test_memory_stays_as_it_is_written_where_the_budget_has_no_size():
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": "3G"}}
    for size in ("auto", "unlimited", "0"):
        found = container(template(host={"budget": size}, workers={"backend": "cpu", "resources": resources}))
        assert found["resources"] == resources


@pytest.mark.parametrize(
    ("text", "size"),
    [("1Gi", 1 << 30), ("1.5Gi", 3 << 29), ("2G", 2 * 10**9), ("123", 123), ("1e3", 1000), ("1500m", 2), ("1k", 1000)],
)
def test_quantities_of_kubernetes_are_read(text, size):
    assert memory_bytes(text) == size
