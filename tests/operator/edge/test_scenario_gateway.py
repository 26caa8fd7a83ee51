# SPDX-License-Identifier: Apache-2.0
"""A pool behind a Gateway: one HTTPRoute where the API is served, a condition that says so where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers.api_server import Kubectl
from helpers.operator_rig import BUDGETS, Rig

from ballast_operator.cluster.resources import HTTP_ROUTES

pytestmark = pytest.mark.apiserver

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "httproutes.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/891"},
    },
    "spec": {
        "group": HTTP_ROUTES.group,
        "scope": "Namespaced",
        "names": {
            "kind": HTTP_ROUTES.kind,
            "plural": HTTP_ROUTES.plural,
            "singular": "httproute",
            "listKind": "HTTPRouteList",
        },
        "versions": [
            {
                "name": HTTP_ROUTES.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def gateway_api(server: Kubectl, tmp_path: Path) -> Iterator[list[None]]:
    """Serves HTTPRoute from the first append to the list on."""

    class Switch(list[None]):
        def append(self, _: None) -> None:
            (tmp_path / "crd.yaml").write_text(yaml.safe_dump(CRD))
            server.succeed("apply", "--server-side", "-f", str(tmp_path / "crd.yaml"))
            server.succeed("wait", "--for=condition=Established", f"crd/{CRD['metadata']['name']}", "--timeout=60s")
            super().append(None)

    switch = Switch()
    yield switch
    if switch:
        server.succeed("delete", "crd", CRD["metadata"]["name"])


async def test_a_pool_gets_one_route_once_the_api_is_served(pool: Rig, gateway_api: list[None]):
    await pool.budget(serving={"gatewayRef": {"name": "front", "namespace": "ingress"}})
    message = await pool.until_condition(BUDGETS, "default", "Degraded", "True", "RouteNotServed")
    assert "does not serve gateway.networking.k8s.io/v1 HTTPRoute" in message

    gateway_api.append(None)
    await pool.budget(serving={"gatewayRef": {"name": "front", "namespace": "ingress", "sectionName": "web"}})
    route = await pool.until(lambda: pool.get(HTTP_ROUTES, "default-pool"))
    assert route["spec"]["parentRefs"] == [{"name": "front", "namespace": "ingress", "sectionName": "web"}]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "default-pool", "port": 8000}]}]
    assert route["metadata"]["ownerReferences"][0]["name"] == "default"
    await pool.until_condition(BUDGETS, "default", "Degraded", "False")

    await pool.budget()

    async def gone() -> bool:
        return await pool.get(HTTP_ROUTES, "default-pool") is None

    await pool.until(gone)


async def test_a_route_of_somebody_else_is_left_alone(pool: Rig, gateway_api: list[None]):
    gateway_api.append(None)
    await pool.apply(HTTP_ROUTES, "default-pool", {"parentRefs": [{"name": "theirs"}]})
    await pool.budget(serving={"gatewayRef": {"name": "front"}})
    message = await pool.until_condition(BUDGETS, "default", "Degraded", "True", "RouteNotServed")
    assert "HTTPRoute 'default-pool' exists and is not of this WeightBudget" in message
    assert (await pool.get(HTTP_ROUTES, "default-pool"))["spec"] == {"parentRefs": [{"name": "theirs"}]}
