# SPDX-License-Identifier: Apache-2.0
"""What the operator stands on: API server, scheduler, nodes whose kubelets kwok plays, and the definitions."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.limiter import TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import Resource
from benchmarks.report import progress
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.console import ClusterError
from e2e.cluster.processes import Processes

NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)

POD_ADDRESSES: Final = "198.18.0.1/16"
"""Addresses of pods, all of them this machine: an EndpointSlice takes none of 127.0.0.0/8. The range is for benchmarks."""

_NETWORK: Final = """\
link set lo up
route add local {pods} dev lo
link add outside type bridge
address add 198.19.0.1/24 dev outside
link set outside up
route add default dev outside"""
"""Steps of `ip`; the API server does not start without a way out."""

_INSIDE: Final = "--inside"

_WORKERS_PER_NODE: Final = 8
_CRDS: Final = Path(__file__).resolve().parents[2] / "crds"


def enter_network() -> None:
    """Start this command anew in a network of its own, in which every pod address is loopback; nothing of it is left."""
    if _INSIDE in sys.argv:
        sys.argv.remove(_INSIDE)
        for step in _NETWORK.format(pods=ipaddress.ip_interface(POD_ADDRESSES).network).splitlines():
            subprocess.run(["ip", *step.split()], check=True)
        return
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    argv = ["unshare", "--net", *own_user, "--", sys.executable, *sys.orig_argv[1:], _INSIDE]
    os.execvp("unshare", argv)  # noqa: S606


@dataclasses.dataclass(frozen=True)
class Ground:
    """A running API server with nodes, and a client of the benchmark's own."""

    server: ApiServer
    client: Client

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""
        return self.server.kubeconfig

    async def namespace(self, name: str) -> None:
        """Make a namespace."""
        await self.client.create(NAMESPACES, {"metadata": {"name": name}})


@asynccontextmanager
async def ground(*, workers: int) -> AsyncIterator[Ground]:
    """Bring everything up for so many workers, and take it away afterwards.

    Raises:
        ClusterError: a program is missing; the message says how to build it.
    """
    with api_server() as server:
        missing = [name for name in ("kube-scheduler", "kwok") if not (server.settings.bin / name).exists()]
        if missing:
            raise ClusterError(f"{server.settings.bin} lacks {', '.join(missing)}: run e2e/bootstrap/bootstrap kwok")
        access = await Access.load(server.kubeconfig)
        writes = TokenBucket(rate=10_000, burst=10_000, clock=time.monotonic)
        client = Client(access, metrics=ClusterMetrics(CollectorRegistry()), writes=writes)
        try:
            await _definitions(client)
            _spawn(server)
            nodes = max(1, -(-workers // _WORKERS_PER_NODE))
            progress(f"{nodes} nodes played by kwok")
            for number in range(nodes):
                await _node(client, f"node-{number:03}")
            yield Ground(server, client)
        finally:
            await client.close()


async def _node(client: Client, name: str) -> None:
    """A node that takes pods at once: the controller that would untaint it when it is ready does not run."""
    made = await client.create(NODES, {"metadata": {"name": name}})
    await client.apply(NODES, {"metadata": {"name": name, "uid": made["metadata"]["uid"]}, "spec": {"taints": []}})


async def _definitions(client: Client) -> None:
    definitions = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )
    for path in sorted(_CRDS.glob("*.yaml")):
        body: dict[str, Any] = yaml.safe_load(path.read_text())
        await client.create(definitions, body)
        while not _established(await client.get(definitions, None, body["metadata"]["name"])):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _spawn(server: ApiServer) -> None:
    processes, programs = Processes(server.settings), server.settings.bin
    processes.spawn(
        "kube-scheduler",
        [
            programs / "kube-scheduler",
            f"--kubeconfig={server.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=500",
        ],
    )
    processes.spawn(
        "kwok",
        [
            programs / "kwok",
            f"--kubeconfig={server.kubeconfig}",
            "--manage-all-nodes",
            f"--cidr={POD_ADDRESSES}",
            "--node-lease-duration-seconds=40",
        ],
    )


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
