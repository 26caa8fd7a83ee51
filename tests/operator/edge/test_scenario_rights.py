# SPDX-License-Identifier: Apache-2.0
"""The operator's rights against what the API server wrote down of its calls: nothing is missing, nothing is for nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from helpers.api_server import Kubectl
from helpers.operator_rig import BUDGETS, CONFIG_MAPS, ENDPOINT_SLICES, MODELS, SECRETS, SERVICES, Rig, connect

from ballast_contract import names
from ballast_operator.cluster.permissions import OPTIONAL, PERMISSIONS
from ballast_operator.cluster.resources import DISRUPTION_BUDGETS
from ballast_operator.edge.uninstall import _strip
from ballast_operator.reconcile import stores

pytestmark = pytest.mark.apiserver

Call = tuple[str, str, str]
"""Group, resource with subresource, verb."""


def calls(server: Kubectl, namespace: str) -> Iterator[tuple[Call, int]]:
    """What the operator called in a namespace, with the answer's code."""
    for line in server.audit.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef", {})
        if about.get("namespace") == namespace:
            resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            yield (about.get("apiGroup", ""), resource, event["verb"]), event["responseStatus"]["code"]


async def test_every_right_is_used_and_every_call_has_its_right(
    bare: Rig, server: Kubectl, monkeypatch: pytest.MonkeyPatch
):
    pool = bare
    monkeypatch.setattr(stores, "suspects", lambda *_, **__: True)  # the claims are looked at
    await things_of_somebody_else(pool)
    pool.start_operator()
    await pool.budget()
    await pool.model("minilm")
    await pool.until_condition(MODELS, "minilm", "Ready", "False", "ServiceConflict")
    for resource in ("configmaps", "poddisruptionbudgets"):
        await until_used(server, pool, resource, "get")
    for resource, name in ((SERVICES, "minilm"), (DISRUPTION_BUDGETS, "default"), (CONFIG_MAPS, "default-demand")):
        await pool.delete(resource, name)
    await until_used(server, pool, "endpointslices", "get")

    async def the_slice_is_named() -> bool:  # the call comes before the status that tells of it
        message = await pool.until_condition(MODELS, "minilm", "Ready", "False", "ServiceConflict")
        return "EndpointSlice 'minilm-ipv4' exists and was not made by Ballast" in message

    await pool.until(the_slice_is_named)
    await pool.delete(ENDPOINT_SLICES, "minilm-ipv4")
    await pool.annotate(MODELS, "minilm", note="somebody looks")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    await pool.until(lambda: pool.get(DISRUPTION_BUDGETS, "default"))

    await drift(pool)
    for resource in ("services", "endpointslices", "poddisruptionbudgets", "configmaps"):
        await until_used(server, pool, resource, "patch")
    await pool.client.patch(SECRETS, pool.namespace, names.WORKER_CERTIFICATE, {"data": {"tls.crt": ""}})
    await pool.budget(serving={"addresses": "pool"}, device={"scratch": "64Mi"}, replicas=2)
    for resource, verb in (("secrets", "update"), ("services", "delete"), ("configmaps", "delete"), ("pods", "get")):
        await until_used(server, pool, resource, verb)
    await strip_what_changed_meanwhile(pool)

    recorded = dict(calls(server, pool.namespace))
    granted = {(p.group, p.resource, verb) for p in PERMISSIONS for verb in p.verbs}
    needed = {(group, resource, verb) for group, resource, verb in granted if resource not in OPTIONAL}
    assert sorted(recorded.keys() - granted) == []
    assert sorted(needed - recorded.keys()) == []
    assert 403 not in {code for _, code in calls(server, pool.namespace)}


async def until_used(server: Kubectl, pool: Rig, resource: str, verb: str) -> None:
    async def used() -> bool:
        return any(call[1:] == (resource, verb) for call, _ in calls(server, pool.namespace))

    await pool.until(used, seconds=120)


async def things_of_somebody_else(pool: Rig) -> None:
    await pool.apply(SERVICES, "minilm", {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]})
    await pool.apply(DISRUPTION_BUDGETS, "default", {"maxUnavailable": 0, "selector": {"matchLabels": {"a": "b"}}})
    for resource, name, rest in (
        (CONFIG_MAPS, "default-demand", {"data": {}}),
        (ENDPOINT_SLICES, "minilm-ipv4", {"addressType": "IPv4", "endpoints": [], "ports": []}),
    ):
        await pool.client.apply(
            resource, {"metadata": {"name": name, "namespace": pool.namespace}, **rest}, manager="test"
        )


async def drift(pool: Rig) -> None:
    """Somebody edits what is ours."""
    for resource, name, change in (
        (SERVICES, "minilm", {"spec": {"type": "NodePort"}}),
        (DISRUPTION_BUDGETS, "default", {"spec": {"maxUnavailable": 0}}),
        (ENDPOINT_SLICES, "minilm-ipv4", {"ports": []}),
        (CONFIG_MAPS, "default-demand", {"data": {"demand.json": "[]"}}),
    ):
        if resource == CONFIG_MAPS:
            await pool.annotate(BUDGETS, "default", repack="first")
            await pool.until(lambda: pool.get(CONFIG_MAPS, "default-demand"))
        await pool.client.patch(resource, pool.namespace, name, change)
    await pool.annotate(BUDGETS, "default", repack="again")


async def strip_what_changed_meanwhile(pool: Rig) -> None:
    """The uninstall hook, with the operator's rights."""
    before = await pool.get(BUDGETS, "default")
    await pool.annotate(BUDGETS, "default", paused="true")
    client = await connect(pool.kubeconfig)
    try:
        await _strip(client, before)
    finally:
        await client.close()
