# SPDX-License-Identifier: Apache-2.0
"""What scheduler and kubelets would do about worker pods: a node, an address of this machine, and the word that they run."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from typing import Final

from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.resources import MANAGED_SELECTOR, PODS, Resource

ADDRESSES: Final = ipaddress.ip_network("198.18.0.0/16")
"""Of pods, all of them this machine: an EndpointSlice takes none of 127.0.0.0/8. The range is for benchmarks."""

_BINDINGS: Final = Resource("", "v1", "bindings", "Binding")
_WORKERS_PER_NODE: Final = 8


async def play(client: Client, namespace: str, *, count: int) -> AsyncIterator[dict[str, str]]:
    """Run every worker pod that comes, until there are so many; yields the address of each by name, as often as it looks.

    Nobody plays on afterwards: a pod that the operator made later would not get ready.
    """
    addresses: dict[str, str] = {}
    hosts = ADDRESSES.hosts()
    while len(addresses) < count:
        pods = (await client.list(PODS, namespace, labels=MANAGED_SELECTOR)).items
        new = [pod for pod in pods if pod["metadata"]["name"] not in addresses]
        given = {pod["metadata"]["name"]: str(next(hosts)) for pod in new}
        nodes = (f"node-{(len(addresses) + number) // _WORKERS_PER_NODE:03}" for number in range(len(new)))
        await asyncio.gather(
            *(_run(client, pod, node, given[pod["metadata"]["name"]]) for pod, node in zip(new, nodes, strict=True))
        )
        addresses |= given
        yield addresses
        await asyncio.sleep(0.2)


async def _run(client: Client, pod: Object, node: str, address: str) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    await client.create(_BINDINGS, {"metadata": {"namespace": namespace, "name": name}, "target": target})
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await client.patch(PODS, namespace, name, {"status": status}, subresource="status")
