# SPDX-License-Identifier: Apache-2.0
"""What a cluster that was taken down has left on the machine; nothing, unless something went wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.cgroups import cgroups
from e2e.cluster.commands import run
from e2e.cluster.network import interfaces
from e2e.cluster.nodes import NODE_MOUNTS
from e2e.cluster.settings import Settings

_CHAINS = ("KUBE-", "CNI-")


def leftovers(settings: Settings) -> list[str]:
    """Return one line for each thing that is left."""
    lines = [*_processes(settings), *_mounts(settings), *_namespaces()]
    lines += [f"interface {name}" for name in interfaces(settings)]
    lines += [*_routes(settings), *_rules(settings)]
    lines += [f"cgroup {path}" for path in cgroups(settings)]
    return lines


def _processes(settings: Settings) -> Iterator[str]:
    """Processes that run a binary of the cluster, name its state folder, or live in one of its cgroups."""
    marks = f"{settings.state}/".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes()
            groups = (folder / "cgroup").read_text()
        except OSError:
            continue
        if marks in words or f":/{settings.name}/" in groups:
            yield f"process {folder.name}: {words.replace(bytes(1), b' ').decode(errors='replace')[:120]}"


def _mounts(settings: Settings) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        root, target = line.split()[3:5]
        ours = any(place.startswith(f"{settings.state}/") for place in (root, target))
        if ours or target.startswith(tuple(f"{path}/" for path in NODE_MOUNTS.values())):
            yield f"mount {target}"


def _namespaces() -> Iterator[str]:
    for folder in (Path("/run/netns"), Path("/var/run/netns")):
        if folder.is_dir() and not folder.is_symlink():
            yield from (f"network namespace {path.name}" for path in folder.glob("cni-*"))


def _routes(settings: Settings) -> Iterator[str]:
    networks = (f"{settings.net}.", f"{settings.pods}.", f"{settings.services}.")
    for line in run(settings, "ip", "route").stdout.splitlines():
        if line.startswith(networks) or f" dev {settings.bridge}" in line:
            yield f"route {line.strip()}"


def _rules(settings: Settings) -> Iterator[str]:
    for tool in ("iptables-save", "ip6tables-save"):
        if shutil.which(tool, path="/usr/sbin:/sbin"):
            for line in run(settings, tool, check=False).stdout.splitlines():
                if any(chain in line for chain in _CHAINS):
                    yield f"firewall rule {line}"
