# SPDX-License-Identifier: Apache-2.0
"""How much more host memory this process may take: free tmpfs, memory limits of its control groups, memory of the node.

Memory of a tmpfs counts for whoever touches it first, and going over a control group's limit is a kill, not an error; so
this is asked before a segment is allocated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARGIN_BYTES = 64 << 20
"""Left to the process itself below a memory limit."""

PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""Limits from here on mean that there is none: version 1 writes a huge number."""


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that may still be taken.

    Attributes:
        nbytes: the least that any limit leaves, 0 or more.
        limit: which limit that is, for messages.
    """

    nbytes: int
    limit: str


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that limits the memory of this process: its own, or one above it.

    Attributes:
        path: its folder.
        limit: bytes that it may take.
        left: bytes that it may still take, with the file cache that it would give up.
    """

    path: Path
    limit: int
    left: int


def available(directory: Path, *, proc: Path = PROC, cgroups: Path = CONTROL_GROUPS) -> Available:
    """Ask every limit that applies to pages allocated in `directory` by this process."""
    status = os.statvfs(directory)
    space = Available(status.f_bavail * status.f_frsize, f"free space of the file system at {directory}")
    return min(space, memory(proc=proc, cgroups=cgroups), key=lambda one: one.nbytes)


def memory(*, proc: Path = PROC, cgroups: Path = CONTROL_GROUPS) -> Available:
    """Ask every limit that applies to memory of this process."""
    found = [
        Available(max(0, group.left - MARGIN_BYTES), f"memory limit of the control group {group.path}")
        for group in groups(proc=proc, cgroups=cgroups)
    ]
    node = available_of_node(proc=proc)
    if node is not None:
        found.append(Available(max(0, node - MARGIN_BYTES), "available memory of the node"))
    return min(found, key=lambda one: one.nbytes, default=Available(sys.maxsize, "no limit"))


def shortage() -> str | None:
    """Why nothing more may be taken: some limit leaves less than the margin. None while there is room."""
    left = memory()
    return None if left.nbytes else f"less than {MARGIN_BYTES} bytes are left of the {left.limit}"


def available_of_node(*, proc: Path = PROC) -> int | None:
    """Bytes that the node can give without swapping; None where it does not tell."""
    return _meminfo("MemAvailable:", proc)


def total_of_node(*, proc: Path = PROC) -> int | None:
    """Bytes of memory that the node has; None where it does not tell."""
    return _meminfo("MemTotal:", proc)


def groups(*, proc: Path = PROC, cgroups: Path = CONTROL_GROUPS) -> Iterator[Group]:
    """The control groups with a memory limit, from this process's own to the root."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield from _limited(cgroups, group, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            yield from _limited(cgroups / "memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _limited(root: Path, group: str, limit_file: str, usage_file: str, prefix: str) -> Iterator[Group]:
    for folder in _upwards(root, group, usage_file):
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            cache = _statistics(folder, f"{prefix}inactive_file", f"{prefix}active_file")
            yield Group(folder, limit, max(0, limit - usage + cache))


def _upwards(root: Path, group: str, file: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container the group may be named as the node sees it, while only its
    own subtree is mounted: then that is the root.
    """
    folder = root / group.strip("/")
    if not (folder / file).exists():
        folder = root
    while True:
        if (folder / file).exists():
            yield folder
        if folder == root:
            return
        folder = folder.parent


def _statistics(folder: Path, *names: str) -> int:
    """Bytes of file cache, which counts against the limit but is given up under pressure; tmpfs is not part of it."""
    values = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    return sum(int(values.get(name, "0")) for name in names)


def _meminfo(name: str, proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
