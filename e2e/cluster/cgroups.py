# SPDX-License-Identifier: Apache-2.0
"""The nodes' own cgroups, which keep the pods of several kubelets apart and let all of them be removed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from e2e.cluster.settings import Settings

_CONTROLLERS = "+cpu +cpuset +io +memory +pids"


def hierarchies() -> list[Path]:
    """Return where cgroup hierarchies are mounted: one of version 2, several of version 1."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(target) for _, target, kind, *_ in lines if kind in {"cgroup", "cgroup2"}]


def make_cgroup(settings: Settings, node: str) -> None:
    """Make a node's cgroup in every hierarchy, where the kubelet wants to find its cgroupRoot."""
    for top in hierarchies():
        folder = top
        for part in (settings.name, node):
            _delegate(folder)
            folder /= part
            folder.mkdir(exist_ok=True)
            _fill_cpuset(folder)


def _delegate(folder: Path) -> None:
    """Version 2 hands controllers down only when told so."""
    control = folder / "cgroup.subtree_control"
    if control.exists():
        for controller in _CONTROLLERS.split():
            with contextlib.suppress(OSError):  # one that this kernel lacks
                control.write_text(controller)


def _fill_cpuset(folder: Path) -> None:
    """Version 1 lets no process into a cpuset whose cpus and mems are empty."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        own, parent = folder / file, folder.parent / file
        if own.exists() and parent.exists() and not own.read_text().strip():
            own.write_text(parent.read_text())


def cgroups(settings: Settings) -> list[Path]:
    """Return the cluster's cgroups, the innermost first."""
    found: list[Path] = []
    for top in hierarchies():
        mine = top / settings.name
        if mine.exists():
            found += [Path(folder) for folder, _, _ in os.walk(mine, topdown=False)]
    return found


def remove_cgroups(settings: Settings) -> None:
    """Remove them; one may be busy for a moment after its last process has ended."""
    for folder in cgroups(settings):
        for _ in range(60):
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
            else:
                break
