# SPDX-License-Identifier: Apache-2.0
"""Faults of the real cluster: processes that are killed or stopped, an API server that is away, a node without a cable."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.operator_rig import connect

from ballast_operator.cluster.resources import Resource
from e2e.cluster.commands import run
from e2e.cluster.controlplane import control_plane_up
from e2e.cluster.nodes import running_nodes
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings


def main_process(pod: Mapping[str, Any], program: str) -> int:
    """The pid on this machine of the process with which a pod's container began.

    Raises:
        LookupError: the pod has no such process now.
    """
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if uid not in (folder / "cgroup").read_text() or program not in (folder / "cmdline").read_text():
                continue
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            if lines["NSpid"].split()[-1] == "1":
                return int(folder.name)
    raise LookupError(f"pod {pod['metadata']['name']} runs no {program}")


def kill(*pids: int) -> None:
    """End processes at once, all in the same moment."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


async def storm(kubeconfig: Path, namespace: str, objects: Sequence[tuple[Resource, str]], *, events: int) -> None:
    """Change an annotation of the objects in turn, so many times in all, as fast as the API server takes it."""
    client = await connect(kubeconfig)
    numbers = iter(range(events))

    async def blow() -> None:
        for number in numbers:
            resource, name = objects[number % len(objects)]
            body = {"metadata": {"annotations": {"storm": str(number)}}}
            await client.patch(resource, namespace, name, body)

    try:
        await asyncio.gather(*(blow() for _ in range(20)))
    finally:
        await client.close()


class Machine:
    """The machine under a local cluster."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def stop_api_server(self) -> None:
        """Take the API server away; who is connected sees its connection end."""
        Processes(self._settings).stop("kube-apiserver")

    def start_api_server(self) -> None:
        """Bring it back, and wait until it is ready."""
        control_plane_up(self._settings)

    @contextmanager
    def speechless(self, number: int) -> Iterator[None]:
        """Stop a node's kubelet for the block: its pods run, and nobody hears of it."""
        kubelet = self._kubelet(number)
        entered_by = int(Path(f"/proc/{kubelet}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        os.kill(kubelet, signal.SIGSTOP)
        try:
            yield
        finally:
            # nsenter stops itself when the program that it runs is stopped, and could not bury it any more.
            for pid in (kubelet, entered_by):
                os.kill(pid, signal.SIGCONT)

    def mend(self) -> None:
        """Undo what a test has done and not undone: every node is plugged in, and the API server is there."""
        for number in running_nodes(self._settings):
            run(self._settings, "ip", "link", "set", self._settings.node_link(number), "up")
        self.start_api_server()

    def compact(self) -> None:
        """Have etcd forget every revision but the newest: a watch that was cut cannot go on where it was."""
        revision = self._etcd("maintenance/status", {})["header"]["revision"]
        self._etcd("kv/compaction", {"revision": revision, "physical": True})

    @contextmanager
    def unplugged(self, number: int) -> Iterator[None]:
        """Pull a node's cable for the block."""
        link = self._settings.node_link(number)
        run(self._settings, "ip", "link", "set", link, "down")
        try:
            yield
        finally:
            run(self._settings, "ip", "link", "set", link, "up")

    def _kubelet(self, number: int) -> int:
        name = f"{self._settings.node_name(number)}.kubelet"
        pid = Processes(self._settings).running(name)
        if pid is None:
            raise LookupError(f"{name} does not run")
        return pid

    def _etcd(self, method: str, body: Mapping[str, object]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._settings.etcd_port}/v3/{method}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, json.dumps(body).encode()), timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
