# SPDX-License-Identifier: Apache-2.0
"""What the chart renders, with its defaults and with each switch turned."""

from __future__ import annotations

import json
import subprocess

import jsonschema
import pytest
import yaml

from ballast_contract import __version__
from ballast_operator.cluster.permissions import PERMISSIONS
from ballast_operator.edge import arguments

MONITORING = ("--api-versions", "monitoring.coreos.com/v1")
DIGEST = "sha256:" + "a" * 64


def of(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, [(o["kind"], o["metadata"]["name"]) for o in objects]
    return found[0]


def kinds(objects):
    return {o["kind"] for o in objects}


def container(objects):
    (found,) = of(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return found


@pytest.fixture(scope="module")
def objects(helm):
    return helm.render()


def test_lint_finds_nothing(helm, chart):
    done = subprocess.run([helm.program, "lint", "--strict", str(chart)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_namespaced_object_says_where_it_goes(objects):
    cluster = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for o in objects:
        assert ("namespace" in o["metadata"]) is (o["kind"] not in cluster), o["metadata"]
        assert o["metadata"]["labels"]["app.kubernetes.io/part-of"] == "ballast"


def test_the_operator_runs_restricted(objects):
    pod = of(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] >= 10000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(objects)["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert [list(volume) for volume in pod["volumes"]] == [["name", "emptyDir"]]
    assert pod["enableServiceLinks"] is False
    assert "limits" in container(objects)["resources"]


def test_the_user_id_can_be_left_to_the_cluster(helm):
    context = of(helm.render("--set", "runAsUser=null"), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_one_replica_is_recreated_and_more_are_rolled_with_a_disruption_budget(helm, objects):
    assert of(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert "PodDisruptionBudget" not in kinds(objects)
    two = helm.render("--set", "replicas=2")
    assert of(two, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert of(two, "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_operator_is_told_the_worker_image_and_its_own(helm, objects):
    assert "--worker-image=ballast-worker:0.1.0" in container(objects)["args"]
    values = {"worker": {"image": {"repository": "r.example/w", "digest": DIGEST}}, "image": {"tag": "t"}}
    rendered = container(helm.render(values={**values, "imagePullSecrets": [{"name": "a"}, {"name": "b"}]}))
    assert f"--worker-image=r.example/w@{DIGEST}" in rendered["args"]
    assert rendered["image"] == "ballast-operator:t"
    assert "--operator-image=ballast-operator:t" in rendered["args"]
    assert [a for a in rendered["args"] if "pull" in a] == ["--pull-secret=a", "--pull-secret=b"]


def test_selectors_have_labels_that_no_value_changes(helm, objects):
    stamped = helm.render(
        values={"commonLabels": {"app.kubernetes.io/name": "x", "team": "a"}, "podLabels": {"p": "q"}}
    )
    for rendered in (objects, stamped):
        deployment = of(rendered, "Deployment")["spec"]
        selector = deployment["selector"]["matchLabels"]
        assert selector == of(rendered, "Service")["spec"]["selector"]
        assert selector == {
            "app.kubernetes.io/name": "ballast",
            "app.kubernetes.io/instance": "ballast",
            "app.kubernetes.io/component": "operator",
        }
        assert selector.items() <= deployment["template"]["metadata"]["labels"].items()
    assert of(stamped, "Deployment")["spec"]["template"]["metadata"]["labels"]["p"] == "q"
    assert of(stamped, "ServiceAccount")["metadata"]["labels"]["team"] == "a"


def test_the_uninstall_job_is_not_selected_as_an_operator(objects):
    labels = of(objects, "Job")["spec"]["template"]["metadata"]["labels"]
    selector = of(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items()


def rules(objects, kind, name):
    found = set()
    for rule in of(objects, kind, name)["rules"]:
        only = tuple(rule.get("resourceNames", ()))
        for group in rule["apiGroups"]:
            found |= {(group, resource, only, verb) for resource in rule["resources"] for verb in rule["verbs"]}
    return found


def wanted(scope):
    return {(p.group, p.resource, p.only, verb) for p in PERMISSIONS for verb in p.verbs if p.scope == scope}


def test_roles_grant_what_the_operator_does_and_nothing_else(helm, objects):
    assert rules(objects, "ClusterRole", "ballast") == wanted("watched")
    assert rules(objects, "Role", "ballast-own") == wanted("own")


def test_secrets_are_read_and_changed_by_name_only_and_never_listed(objects):
    for o in objects:
        for rule in o.get("rules", ()):
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"] or rule["resourceNames"] in (
                    [["ballast-workers-tls"]] if o["kind"] == "ClusterRole" else [["ballast-operator-tls"]]
                )
                assert not {"list", "watch", "delete", "patch"} & set(rule["verbs"])


def test_no_role_has_a_wildcard(objects):
    for o in objects:
        for rule in o.get("rules", ()):
            assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]


def test_every_role_is_bound_to_the_operator(objects):
    for kind, name in (("RoleBinding", "ballast-own"), ("ClusterRoleBinding", "ballast")):
        binding = of(objects, kind, name)
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "ballast", "namespace": "ballast-system"}]


def test_watched_namespaces_get_a_role_each_and_no_cluster_role(helm):
    objects = helm.render("--set", "watchNamespaces={team-a,team-b}", "--set", "rbac.aggregate=false")
    assert "ClusterRole" not in kinds(objects)
    assert "ClusterRoleBinding" not in kinds(objects)
    for namespace in ("team-a", "team-b"):
        (role,) = [o for o in objects if o["kind"] == "Role" and o["metadata"]["namespace"] == namespace]
        assert rules([role], "Role", "ballast") == wanted("watched")
        assert f"--namespace={namespace}" in container(objects)["args"]
        (job,) = of(objects, "Job")["spec"]["template"]["spec"]["containers"]
        assert f"--namespace={namespace}" in job["args"]


def test_rights_can_be_left_to_others(helm):
    values = {"rbac": {"create": False, "aggregate": False}, "serviceAccount": {"create": False, "name": "mine"}}
    objects = helm.render(values=values)
    assert not kinds(objects) & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"}
    assert of(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert "serviceAccount.name must name" in helm.refuse("--set", "serviceAccount.create=false")


def test_viewers_may_look_and_editors_may_change_the_two_kinds(objects):
    view = of(objects, "ClusterRole", "ballast-view")
    edit = of(objects, "ClusterRole", "ballast-edit")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    assert {verb for *_, verb in rules(objects, "ClusterRole", "ballast-view")} == {"get", "list", "watch"}
    assert ("ballast.dev", "weightbudgets/status", (), "update") not in rules(objects, "ClusterRole", "ballast-edit")


def test_crds_are_those_of_the_repository_and_stay(helm, objects, chart):
    for path in sorted((chart.parents[1] / "crds").glob("*.yaml")):
        source = yaml.safe_load(path.read_text())
        rendered = of(objects, "CustomResourceDefinition", source["metadata"]["name"])
        assert rendered["spec"] == source["spec"]
        assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    dropped = of(helm.render("--set", "crds.keep=false"), "CustomResourceDefinition", "weightbudgets.ballast.dev")
    assert "annotations" not in dropped["metadata"]
    assert "CustomResourceDefinition" not in kinds(helm.render("--set", "crds.install=false"))


def test_the_uninstall_hook_strips_finalizers_with_the_operator_image(helm, objects):
    job = of(objects, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (hook,) = job["spec"]["template"]["spec"]["containers"]
    assert hook["image"] == container(objects)["image"]
    assert hook["args"][0] == "strip-finalizers"
    assert hook["securityContext"] == container(objects)["securityContext"]
    assert job["spec"]["activeDeadlineSeconds"] <= 120
    assert "Job" not in kinds(helm.render("--set", "uninstallHook.enabled=false"))


def test_monitors_are_off_and_need_the_prometheus_operator(helm, objects):
    assert not kinds(objects) & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    for switch in ("serviceMonitor", "podMonitor", "prometheusRule"):
        text = helm.refuse("--set", f"monitoring.{switch}.enabled=true")
        assert f"monitoring.{switch}.enabled is true, but the cluster does not serve monitoring.coreos.com/v1" in text


def test_monitors_find_the_operator_and_the_workers(helm):
    switches = [f"monitoring.{switch}.enabled=true" for switch in ("serviceMonitor", "podMonitor", "prometheusRule")]
    objects = helm.render(*MONITORING, *(part for s in switches for part in ("--set", s)))
    service = of(objects, "Service")
    selected = of(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["name"] == of(objects, "ServiceMonitor")["spec"]["endpoints"][0]["port"]
    assert of(objects, "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}
    assert of(objects, "PodMonitor")["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "ballast",
        "app.kubernetes.io/component": "worker",
    }


def test_a_service_monitor_needs_the_service(helm):
    text = helm.refuse(
        *MONITORING, "--set", "monitoring.serviceMonitor.enabled=true", "--set", "monitoring.service.enabled=false"
    )
    assert "a ServiceMonitor needs the Service" in text


def test_the_prometheus_rule_carries_the_rules_file(helm, chart):
    groups = yaml.safe_load((chart / "rules" / "ballast.yaml").read_text())["groups"]
    switch = ("--set", "monitoring.prometheusRule.enabled=true")
    assert of(helm.render(*MONITORING, *switch), "PrometheusRule")["spec"]["groups"] == groups
    base = ("--set", "monitoring.prometheusRule.runbookBaseUrl=https://docs.example/runbooks/")
    linked = of(helm.render(*MONITORING, *switch, *base), "PrometheusRule")["spec"]["groups"]
    for group in linked:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"https://docs.example/runbooks/{rule['alert']}.md"


def test_scheduling_values_reach_the_pod(helm):
    values = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"note": "x"},
    }
    template = of(helm.render(values=values), "Deployment")["spec"]["template"]
    assert {key: template["spec"].get(key) for key in values if key != "podAnnotations"} == {
        key: value for key, value in values.items() if key != "podAnnotations"
    }
    assert template["metadata"]["annotations"] == {"note": "x"}


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("ballast", {}, "ballast"),
        ("prod", {}, "prod-ballast"),
        ("prod", {"nameOverride": "b"}, "prod-b"),
        ("prod", {"fullnameOverride": "mine"}, "mine"),
        ("a" * 53, {}, "a" * 52),
    ],
)
def test_names_follow_the_release_and_leave_room_for_suffixes(helm, release, values, name):
    objects = helm.render(values=values, release=release)
    assert of(objects, "Deployment")["metadata"]["name"] == name
    assert all(len(o["metadata"]["name"]) <= 63 for o in objects if o["kind"] != "CustomResourceDefinition")


def test_an_older_kubernetes_is_refused(helm):
    assert "incompatible with Kubernetes v1.29.0" in helm.refuse("--kube-version", "1.29.0")


def test_the_chart_has_the_version_of_the_package(chart):
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert metadata["appVersion"] == metadata["version"] == __version__


def test_the_default_values_satisfy_their_own_schema(chart):
    schema = json.loads((chart / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((chart / "values.yaml").read_text()), schema)


@pytest.mark.parametrize("flags", [(), ("--set", "watchNamespaces={team-a,team-b}"), ("--set", "logging.format=json")])
def test_the_operator_understands_what_the_chart_tells_it(helm, flags):
    objects = helm.render(*flags)
    (hook,) = of(objects, "Job")["spec"]["template"]["spec"]["containers"]
    for command, told in (("run", container(objects)), ("strip-finalizers", hook)):
        variables = {e["name"]: e["name"].lower() for e in told["env"]} | {"KUBERNETES_SERVICE_HOST": "api"}
        understood = arguments.parse(told["args"], variables)
        assert understood.command == command
        assert understood.lease_name == "ballast"
        assert understood.lease_namespace == "pod_namespace"
        assert understood.identity.startswith("pod_name_pod_uid_")
        assert understood.namespaces == (("team-a", "team-b") if "watchNamespaces" in str(flags) else ())
    assert arguments.parse(container(objects)["args"], variables).port == 8080
