# SPDX-License-Identifier: Apache-2.0
"""What the API server refuses of a pool and its models is told with its own words, stops nothing else, and heals."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.operator_rig import BUDGETS, ENDPOINT_SLICES, MODELS, SERVICES, Rig, connect, operator_kubeconfig

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
