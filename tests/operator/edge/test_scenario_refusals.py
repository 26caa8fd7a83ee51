# SPDX-License-Identifier: Apache-2.0
"""What the API server refuses of a pool and its models is told with its own words, stops nothing else, and heals."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.operator_rig import BUDGETS, ENDPOINT_SLICES, MODELS, PODS, SERVICES, Rig, connect, operator_kubeconfig

from ballast_operator.cluster import errors
from ballast_operator.cluster.permissions import PERMISSIONS
from ballast_operator.cluster.resources import Resource

pytestmark = pytest.mark.apiserver

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


async def test_a_configuration_that_a_quota_refuses_is_told_and_the_pool_comes_up_when_it_may(bare: Rig):
    none = {"count/configmaps": "0"}
    await bare.apply(QUOTAS, "none", {"hard": none})
    counted = {"metadata": {"name": "none", "namespace": bare.namespace}, "status": {"hard": none, "used": none}}
    await bare.client.apply_status(QUOTAS, counted, manager="test")  # no controller counts here
    bare.start_operator()
    await bare.budget()
    await bare.model("minilm")
    for resource, name, type_ in ((BUDGETS, "default", "WorkersReady"), (MODELS, "minilm", "Ready")):
        message = await bare.until_condition(resource, name, type_, "False", "ConfigMapConflict")
        assert "the API server refuses ConfigMap 'default-config-" in message
        assert "quota" in message

    async def told() -> bool:
        return any(reason == "ConfigMapConflict" for _, reason, _ in await bare.events("default"))

    await bare.until(told)
    await bare.delete(QUOTAS, "none")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")


@pytest.mark.parametrize("kind", [SERVICES, ENDPOINT_SLICES], ids=lambda kind: kind.plural)
async def test_an_address_that_may_not_be_deleted_is_told_and_its_model_is_ready_at_the_pool_s(
    bare: Rig, server, tmp_path: Path, kind: Resource
):
    async def grant(*but: str) -> Path:
        rules = [
            {
                "apiGroups": [p.group],
                "resources": [p.resource],
                "resourceNames": list(p.only),
                "verbs": [v for v in p.verbs if v not in but or p.resource != kind.plural],
            }
            for p in PERMISSIONS
        ]
        return await operator_kubeconfig(server.kubeconfig, tmp_path, name="keeper", rules=rules)

    kubeconfig = await grant()
    bare.start_operator(kubeconfig=kubeconfig)
    await bare.budget()
    await bare.model("minilm")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    await grant("delete")
    await bare.until(lambda: may_delete(kubeconfig, kind, bare.namespace, so=False))
    await bare.budget(serving={"addresses": "pool"})
    message = await bare.until_condition(MODELS, "minilm", "Degraded", "True", "ServiceConflict")
    assert f"the API server refuses to delete {kind.kind} 'minilm" in message
    assert "cannot delete resource" in message
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    await bare.until_condition(BUDGETS, "default", "Degraded", "False")
    assert {s["metadata"]["name"] for s in await bare.list(kind)} >= {"minilm" if kind == SERVICES else "minilm-ipv4"}

    await grant()
    await bare.until(lambda: may_delete(kubeconfig, kind, bare.namespace))
    await bare.annotate(MODELS, "minilm", note="somebody looks")
    await bare.until_condition(MODELS, "minilm", "Degraded", "False")
    assert await bare.get(SERVICES, "minilm") is None
    assert await bare.list(ENDPOINT_SLICES) == []


async def may_delete(kubeconfig: Path, kind: Resource, namespace: str, *, so: bool = True) -> bool:
    """Whether the API server has taken notice that it is so, or not so any more."""
    client = await connect(kubeconfig)
    try:
        await client.delete(kind, namespace, "nothing", uid="none")
    except errors.Forbidden:
        return not so
    finally:
        await client.close()
    return so


POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False
)
BINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)


UNPROBED = "!has(object.metadata.annotations) || !('ballast.dev/probe' in object.metadata.annotations)"


@contextlib.asynccontextmanager
async def policy(rig: Rig, resource: str, expression: str) -> AsyncIterator[None]:
    """In the namespace of the rig the API server takes only changes for which the expression holds: of a resource, and of
    budgets, of which there has to be one.
    """
    name, client = rig.namespace, rig.client
    rule = {
        "apiGroups": ["ballast.dev"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": [resource, "weightbudgets"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [{"expression": e, "message": "not in this house"} for e in (expression, UNPROBED)],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    made = [
        (POLICIES, await client.create(POLICIES, {"metadata": {"name": name}, "spec": spec})),
        (BINDINGS, await client.create(BINDINGS, {"metadata": {"name": name}, "spec": binding})),
    ]
    try:
        await rig.until(lambda: enforced(rig))
        yield
    finally:
        for kind, obj in reversed(made):
            await client.delete(kind, "", name, uid=obj["metadata"]["uid"])


async def enforced(rig: Rig) -> bool:
    """Whether the API server has taken notice of the policy."""
    try:
        await rig.annotate(BUDGETS, "default", probe="1")
    except errors.Refused:
        return True
    await rig.annotate(BUDGETS, "default", probe=None)
    return False


async def test_a_model_whose_assignment_a_policy_refuses_is_told_and_keeps_no_other_from_its_worker(bare: Rig):
    await bare.budget()
    await bare.model("ada")
    await bare.model("ben")
    async with policy(
        bare, "inferencemodels/status", "object.metadata.name != 'ada' || !has(object.status.assignment)"
    ):
        bare.start_operator()
        await bare.until_condition(MODELS, "ben", "Ready", "True")
        for resource, name, type_, status in (
            (MODELS, "ada", "Ready", "False"),
            (MODELS, "ada", "Placed", "False"),
            (BUDGETS, "default", "Degraded", "True"),
        ):
            message = await bare.until_condition(resource, name, type_, status, "WriteRefused")
            assert "the API server refuses status.assignment of InferenceModel 'ada'" in message
            assert "not in this house" in message
    await bare.until_condition(MODELS, "ada", "Ready", "True")
    await bare.until_condition(BUDGETS, "default", "Degraded", "False")


async def test_a_budget_whose_finalizer_a_policy_refuses_says_so_and_comes_up_when_it_may_have_it(bare: Rig):
    await bare.budget()
    await bare.model("ada")
    async with policy(bare, "weightbudgets", "!has(object.metadata.finalizers)"):
        bare.start_operator()
        message = await bare.until_condition(BUDGETS, "default", "Accepted", "False", "WriteRefused")
        assert "not in this house" in message
        await bare.until_condition(MODELS, "ada", "Ready", "False", "WriteRefused")
        assert await bare.list(PODS) == []
    await bare.until_condition(MODELS, "ada", "Ready", "True")
