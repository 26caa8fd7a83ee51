# SPDX-License-Identifier: Apache-2.0
"""A node: one process that holds its namespaces, and containerd, kubelet, kube-proxy and device plugin inside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.cluster import kernel, manifests
from e2e.cluster.cgroups import make_cgroup
from e2e.cluster.commands import kubectl, put, run
from e2e.cluster.console import ClusterError
from e2e.cluster.network import connect_node
from e2e.cluster.pki import certificate, kubeconfig
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings

# What a node sees at these paths is its own folder below the state directory.
NODE_MOUNTS = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "containerd-run": "/run/containerd",
    "netns": "/run/netns",
    "cni": "/var/lib/cni",
    "cni-conf": "/etc/cni/net.d",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
}
GPU_RESOURCE = "nvidia.com/gpu"


def running_nodes(settings: Settings) -> dict[int, int]:
    """Return the pids of the holders of the nodes that run now, by the nodes' numbers."""
    processes = Processes(settings)
    found = (re.fullmatch(rf"{settings.name}-(\d+)", name) for name in processes.names())
    numbers = sorted(int(match[1]) for match in found if match)
    return {number: pid for number in numbers if (pid := processes.running(settings.node_name(number)))}


class Node:
    """One node, known by its number, which counts from 1."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.number = number
        self.name = settings.node_name(number)
        self.address = settings.node_address(number)
        self.folder = settings.node_folder(number)
        self.processes = Processes(settings)

    def inside(self, *argv: object) -> list[object]:
        """Return the command that runs argv in the node's namespaces."""
        pid = self.processes.running(self.name)
        if not pid:
            known = ", ".join(map(self.settings.node_name, running_nodes(self.settings))) or "none"
            raise ClusterError(f"node {self.name} does not run; these do: {known}")
        return ["nsenter", f"--target={pid}", "--net", "--mount", "--pid", "--uts", "--wd=/", "--", *argv]

    def ctr(self, *argv: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run containerd's client against this node, in the namespace that the kubelet uses."""
        return run(self.settings, *self.ctr_command(*argv), check=check)

    def ctr_command(self, *argv: object) -> list[object]:
        """Return the command that ctr runs."""
        return ["ctr", "--address", self.socket, "--namespace", "k8s.io", *argv]

    @property
    def socket(self) -> Path:
        """Socket of containerd as this machine sees it."""
        return self.folder / "containerd-run" / "containerd.sock"

    @property
    def store(self) -> Path:
        """Images and snapshots of containerd."""
        return self.folder / "containerd"

    def hold(self) -> bool:
        """Start the node's namespaces and connect them to the bridge; False when they were there."""
        if self.processes.running(self.name):
            return False
        for part in NODE_MOUNTS:
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        make_cgroup(self.settings, self.name)
        script = ["set -e", "mount --make-rshared /", f"hostname {self.name}", "ip link set lo up"]
        script += [f"mount --bind {self.folder / part} {target}" for part, target in NODE_MOUNTS.items()]
        script += [f"mount -t tmpfs -o size={self.settings.shm},mode=1777 tmpfs /dev/shm"]
        script += [f"exec {self.settings.bin}/pause"]
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        pid = self.processes.spawn(
            self.name, [*unshare, "--propagation=private", "bash", "-c", "\n".join(script)], inner=True
        )
        pause = str((self.settings.bin / "pause").resolve())
        self.processes.wait(self.name, f"{self.name}: namespaces", lambda: _program_of(pid) == pause, seconds=10)
        connect_node(self.settings, self.number, pid=pid)
        return True

    def containerd_up(self, *, new: bool) -> None:
        """Start containerd. new: the node's namespaces are, so what it remembers of containers is out of date."""
        put(self.folder / "containerd.toml", manifests.containerd(self.settings))
        put(self.folder / "cni-conf" / "10-ballast.conflist", manifests.cni(self.settings, self.number))
        self._containerd_start()
        if new and (left := self.ctr("containers", "list", "--quiet").stdout.split()):
            # Images outlive `down`, and with them what containerd noted about containers that are gone.
            self.ctr("containers", "delete", *left)
            self.processes.stop(f"{self.name}.containerd")
            self._containerd_start()

    def _containerd_start(self) -> None:
        name = f"{self.name}.containerd"
        argv = self.inside("containerd", "--config", self.folder / "containerd.toml")
        self.processes.spawn(name, argv, inner=True)
        self.processes.wait(
            name,
            f"{self.name}: containerd answers",
            lambda: self.ctr("version", check=False).returncode == 0,
            seconds=30,
        )

    def kubelet_up(self) -> None:
        """Start kubelet and kube-proxy."""
        settings, name = self.settings, self.name
        user = f"system:node:{name}"
        certificate(settings, name, common_name=user, group="system:nodes", names=[name, self.address])
        config = kubeconfig(settings, name)
        put(self.folder / "resolv.conf", "# the nodes resolve nothing by themselves\n")
        put(self.folder / "kubelet.yaml", manifests.kubelet(settings, self.number))
        argv = [settings.bin / "kubelet", f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={config}"]
        argv += [f"--hostname-override={name}", f"--node-ip={self.address}"]
        self.processes.spawn(f"{name}.kubelet", self.inside(*argv), inner=True)
        put(self.folder / "proxy.yaml", manifests.proxy(settings, self.number))
        argv = [settings.bin / "kube-proxy", f"--config={self.folder}/proxy.yaml"]
        self.processes.spawn(f"{name}.kube-proxy", self.inside(*argv), inner=True)

    def device_plugin_up(self, gpus: int) -> None:
        """Offer made-up GPUs to the kubelet; another number than before starts the plugin anew."""
        name = f"{self.name}.device-plugin"
        argv = [self.settings.bin / "device-plugin", f"-resource={GPU_RESOURCE}", f"-count={gpus}"]
        argv += [f"-prefix=GPU-{self.name}-"]
        if put(self.folder / "device-plugin.args", " ".join(map(str, argv))):
            self.processes.stop(name)
        if gpus:
            self.processes.spawn(name, self.inside(*argv), inner=True)

    def wait_ready(self, *, gpus: int) -> None:
        """Wait until pods can be placed here, with the GPUs allocatable."""
        self.processes.wait(f"{self.name}.kubelet", f"{self.name}: node is Ready", self._ready, seconds=90)
        if gpus:
            self.processes.wait(
                f"{self.name}.device-plugin",
                f"{self.name}: {gpus} {GPU_RESOURCE} allocatable",
                lambda: self._status().get("allocatable", {}).get(GPU_RESOURCE) == str(gpus),
                seconds=60,
            )

    def _ready(self) -> bool:
        """Whether the kubelet that runs now says so: what one before it said stays in the API for a while."""
        since = (self.settings.run / f"{self.name}.kubelet.pid").stat().st_mtime - 1  # heartbeats are whole seconds
        return any(
            each["type"] == "Ready"
            and each["status"] == "True"
            and datetime.fromisoformat(each["lastHeartbeatTime"]).timestamp() >= since
            for each in self._status().get("conditions", [])
        )

    def _status(self) -> dict[str, Any]:
        found = kubectl(self.settings, "get", "node", self.name, "-o", "json", check=False)
        return json.loads(found.stdout)["status"] if found.returncode == 0 else {}


@contextlib.contextmanager
def mount_points(settings: Settings) -> Iterator[None]:
    """Make the folders that nodes mount over, and remember those that this machine lacked and how its kernel was set.

    No other cluster removes them before the block has ended, which is when the nodes have mounted over them.
    """
    with _one_cluster_at_a_time(settings):
        noted = settings.state / "made"
        made = noted.read_text().split() if noted.exists() else []
        for target in map(Path, NODE_MOUNTS.values()):
            new = [each for each in (target, *target.parents) if not each.exists()]
            target.mkdir(parents=True, exist_ok=True)
            made += [str(each) for each in new]
        put(noted, "\n".join(made))
        kernel.remember(_kernel_note(settings))
        yield


def remove_mount_points(settings: Settings) -> None:
    """Remove the folders that mount_points made, that are empty still, and that no other cluster's node mounts over.

    The kernel lets go of such a mount, in every namespace, when the folder below it is removed.
    When no node of any cluster is left, kernel settings become what they were before the first one.
    """
    noted = settings.state / "made"
    with _one_cluster_at_a_time(settings):
        used = _mount_points()
        for path in map(Path, noted.read_text().split() if noted.exists() else []):
            if str(path) not in used:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if NODE_MOUNTS["kubelet"] not in used:
            kernel.restore(_kernel_note(settings))
    noted.unlink(missing_ok=True)


def _kernel_note(settings: Settings) -> Path:
    return settings.home / "kernel-settings.json"


@contextlib.contextmanager
def _one_cluster_at_a_time(settings: Settings) -> Iterator[None]:
    """The folders are this machine's, and every cluster of it mounts over the same."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / "mount-points.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mount_points() -> set[str]:
    """Where anything is mounted, in the namespaces of all processes."""
    found: set[str] = set()
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            found.update(line.split()[4] for line in table.read_text().splitlines())
    return found


def _program_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
