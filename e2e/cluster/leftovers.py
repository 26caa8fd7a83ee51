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
from e2e.cluster.settings import SYSTEM_PATH, Settings


def leftovers(settings: Settings) -> list[str]:
    """Return one line for each thing that is left."""
    lines = [*_processes(settings), *_mounts(settings)]
    lines += [f"interface {name}" for name in interfaces(settings)]
    lines += [*_routes(settings), *_rules(settings)]
    lines += [f"cgroup {path}" for path in cgroups(settings)]
    return lines


def _processes(settings: Settings) -> Iterator[str]:
    """Processes that name the state folder, see a mount of it, or live in one of the cluster's cgroups."""
    mark = f"{settings.state}/"
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (folder / "cgroup").read_text()
            mounts = (folder / "mountinfo").read_text()
        except OSError:
            continue
        if mark in words or f":/{settings.name}/" in groups or mark in mounts:
            yield f"process {folder.name}: {' '.join(words.split())[:120]}"


def _mounts(settings: Settings) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        root, target = line.split()[3:5]
        if any(place.startswith(f"{settings.state}/") for place in (root, target)):
            yield f"mount {target}"


def _routes(settings: Settings) -> Iterator[str]:
    for line in run(settings, "ip", "route").stdout.splitlines():
        if line.startswith(_networks(settings)) or f" dev {settings.bridge}" in line:
            yield f"route {line.strip()}"


def _rules(settings: Settings) -> Iterator[str]:
    """Rules of this machine's own firewall, which no part of the cluster should ever touch."""
    marks = (*(f" {network}" for network in _networks(settings)), f" {settings.bridge} ")
    for tool in ("iptables-save", "ip6tables-save"):
        if shutil.which(tool, path=SYSTEM_PATH):
            for line in run(settings, tool, check=False).stdout.splitlines():
                if any(mark in f"{line} " for mark in marks):
                    yield f"firewall rule {line}"


def _networks(settings: Settings) -> tuple[str, str, str]:
    return f"{settings.net}.", f"{settings.pods}.", f"{settings.services}."
