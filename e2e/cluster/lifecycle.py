# SPDX-License-Identifier: Apache-2.0
"""Bringing a cluster up, telling how it is, and taking it down without a trace."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import images, manifests
from e2e.cluster.cgroups import remove_cgroups
from e2e.cluster.commands import environment, kubectl, need_root
from e2e.cluster.console import ClusterError, say, timed
from e2e.cluster.controlplane import control_plane_up, default_account_made, make_folders
from e2e.cluster.network import bridge_up, network_down, route_between
from e2e.cluster.nodes import Node, mount_points, remove_mount_points, running_nodes
from e2e.cluster.processes import Processes, resident_mib
from e2e.cluster.settings import PAUSE_IMAGE, Settings

_BINARIES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "pause",
    "device-plugin",
)
_TOOLS = ("containerd", "runc", "ctr", "openssl", "ip", "iptables", "nsenter", "conntrack", "unshare")


def up(settings: Settings, *, count: int, gpus: int, dns: bool) -> None:
    """Start what is missing of a cluster of so many nodes and wait until pods can run on all of them."""
    need_root()
    _check_parts(settings)
    make_folders(settings)
    with _alone(settings), timed(f"cluster of {count} node{'s' if count > 1 else ''}"):
        remove_the_dead(settings)
        bridge_up(settings)
        control_plane_up(settings)
        wanted = images.available(settings)
        nodes = [Node(settings, number) for number in range(1, count + 1)]
        with mount_points(settings):
            fresh = {node.number: node.hold() for node in nodes}
        route_between(settings, running_nodes(settings))
        if fresh[1]:
            images.seed(nodes[0], [node for node in nodes[1:] if fresh[node.number]], wanted)
        kubectl(settings, "apply", "-f", "-", text=manifests.PROXY_BINDING)

        def start(node: Node) -> None:
            node.containerd_up(new=fresh[node.number])
            images.give(node, [image for image in wanted if image.ref == PAUSE_IMAGE])  # no pod starts without it
            node.kubelet_up()
            images.give(node, wanted)
            images.forget(node, wanted)
            node.device_plugin_up(gpus)
            node.wait_ready(gpus=gpus)

        _on_each(nodes, start)
        default_account_made(settings)
        if dns:
            kubectl(settings, "apply", "-f", "-", text=manifests.coredns(settings))
            kubectl(settings, "rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=90s")
            say("CoreDNS is ready")


def down(settings: Settings, *, everything: bool) -> None:
    """End all processes, then remove interfaces, cgroups and state; images and logs stay unless everything goes."""
    need_root()
    if not settings.state.exists():
        say("nothing to take down")
        return
    with _alone(settings):
        _take_down(settings, everything=everything)
        if everything:
            shutil.rmtree(settings.state)
    say("down")


def _take_down(settings: Settings, *, everything: bool) -> None:
    Processes(settings).stop_all()
    network_down(settings)
    remove_cgroups(settings)
    remove_mount_points(settings)
    for path in settings.state.iterdir():
        _clear(path, keep=() if everything else ("containerd",), log=settings.log, everything=everything)


def remove_the_dead(settings: Settings) -> None:
    """Remove what a cluster left that ended without `down`, as by a restart of this machine.

    Its pods would come back with it and hold GPUs that nobody sees, and its images may be half written.
    """
    processes = Processes(settings)
    names = processes.names()
    if names and not any(map(processes.running, names)):
        say("the last cluster ended without `cluster down`: it is removed, images too, and a new one is made")
        _take_down(settings, everything=True)
        make_folders(settings)


def _clear(path: Path, *, keep: tuple[str, ...], log: Path, everything: bool) -> None:
    if path.name == "lock" or (path == log and not everything):
        return
    if path.is_dir() and any((path / name).exists() for name in keep):
        for part in path.iterdir():
            if part.name not in keep:
                _remove(part)
    else:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def load(settings: Settings, files: list[Path]) -> None:
    """Import archives into every running node; without any, the images that the bootstrap built."""
    need_root()
    nodes = [Node(settings, number) for number in running_nodes(settings)]
    if not nodes:
        raise ClusterError("no node runs: start the cluster first, with `cluster up`")

    def bring(node: Node) -> None:
        for file in files:
            images.load_file(node, file)
        if not files:
            wanted = images.available(settings)
            images.give(node, wanted)
            images.forget(node, wanted)

    with _alone(settings):
        _on_each(nodes, bring)


def status(settings: Settings) -> int:
    """Print processes, nodes and pods; return 0 when every process runs."""
    processes = Processes(settings)
    names = processes.names()
    pids = {name: processes.running(name) for name in names}
    for name, pid in pids.items():
        print(
            f"{name:32} {f'pid {pid:<8} {resident_mib(pid):7.1f} MiB' if pid else 'gone: `cluster up` starts it anew'}"
        )
    if not any(pids.values()):
        print("down")
        return 1
    print(f"{'together':32} {'':12} {sum(resident_mib(pid) for pid in pids.values() if pid):7.1f} MiB")
    print(kubectl(settings, "get", "nodes,pods", "-A", "-o", "wide", check=False).stdout)
    return 0 if all(pids.values()) else 1


def logs(settings: Settings, component: str | None, *, follow: bool, lines: int) -> None:
    """Show the log of a component, or name them all."""
    found = sorted(path.stem for path in settings.log.glob("*.log"))
    if component is None:
        print("\n".join(found) or f"no logs in {settings.log}")
        return
    if component not in found:
        raise ClusterError(f"no log of {component}; there are: {', '.join(found) or 'none'}")
    argv = ["tail", f"--lines={lines}", *(["--follow=name"] if follow else []), str(settings.log / f"{component}.log")]
    os.execvp(argv[0], argv)  # noqa: S606 - the arguments are a list


def shell(settings: Settings, name: str, argv: list[str]) -> None:
    """Replace this program by one inside a node."""
    need_root()
    number = name.removeprefix(f"{settings.name}-")
    if not number.isdigit():
        raise ClusterError(f"{name} is no node: write {settings.node_name(1)} or just 1")
    command = [str(word) for word in Node(settings, int(number)).inside(*(argv or ["bash"]))]
    os.execvpe(command[0], command, environment(settings) | {"TERM": os.environ.get("TERM", "dumb")})  # noqa: S606 - likewise


def _on_each(nodes: list[Node], act: Callable[[Node], None]) -> None:
    with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        for done in [pool.submit(act, node) for node in nodes]:
            done.result()


def _check_parts(settings: Settings) -> None:
    missing = [str(settings.bin / name) for name in _BINARIES if not (settings.bin / name).exists()]
    path = environment(settings)["PATH"]
    missing += [name for name in _TOOLS if not shutil.which(name, path=path)]
    refs = {image.ref for image in images.available(settings)}
    missing += [f"image {ref}" for ref in (PAUSE_IMAGE,) if ref not in refs]
    if missing:
        raise ClusterError(
            f"missing: {', '.join(missing)}\nrun e2e/bootstrap/bootstrap, which installs and builds them"
        )


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Keep two commands from changing the cluster at once; the second waits."""
    path = settings.state / "lock"
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waits for another command of this cluster to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            # `down --all` removes the file that its successor waits on.
            if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                yield
                return
        settings.state.mkdir(parents=True, exist_ok=True)
        make_folders(settings)
