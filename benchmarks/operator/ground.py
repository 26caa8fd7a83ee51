# SPDX-License-Identifier: Apache-2.0
"""What the operator stands on: an API server with the definitions, in a network of its own."""

from __future__ import annotations

import asyncio
import dataclasses
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
from benchmarks.operator.pods import ADDRESSES
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.processes import Processes

NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)

_NETWORK: Final = """\
link set lo up
route add local {pods} dev lo
link add outside type bridge
address add 198.19.0.1/24 dev outside
link set outside up
route add default dev outside"""
"""Steps of `ip`; the API server does not start without a way out."""

_INSIDE: Final = "--inside"
_CRDS: Final = Path(__file__).resolve().parents[2] / "crds"


def enter_network() -> None:
    """Start this command anew in a network of its own, in which every pod address is loopback; nothing of it is left."""
    if _INSIDE in sys.argv:
        sys.argv.remove(_INSIDE)
        for step in _NETWORK.format(pods=ADDRESSES).splitlines():
            subprocess.run(["ip", *step.split()], check=True)
        return
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    argv = ["unshare", "--net", *own_user, "--", sys.executable, *sys.orig_argv[1:], _INSIDE]
    os.execvp("unshare", argv)  # noqa: S606


@dataclasses.dataclass(frozen=True)
class Ground:
    """A running API server, and a client of the benchmark's own."""

    server: ApiServer
    client: Client

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""
        return self.server.kubeconfig

    def processes(self) -> dict[str, int]:
        """The pid of each process of it, by name."""
        running = Processes(self.server.settings)
        return {name: pid for name in running.names() if (pid := running.running(name)) is not None}

    async def namespace(self, name: str) -> None:
        """Make a namespace."""
        await self.client.create(NAMESPACES, {"metadata": {"name": name}})


@asynccontextmanager
async def ground() -> AsyncIterator[Ground]:
    """Bring everything up, and take it away afterwards.

    Raises:
        ClusterError: a program is missing; the message says how to build it.
    """
    with api_server() as server:
        access = await Access.load(server.kubeconfig)
        writes = TokenBucket(rate=10_000, burst=10_000, clock=time.monotonic)
        client = Client(access, metrics=ClusterMetrics(CollectorRegistry()), writes=writes)
        try:
            await _definitions(client)
            yield Ground(server, client)
        finally:
            await client.close()


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


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
