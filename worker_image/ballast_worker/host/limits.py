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

_UNLIMITED_V1 = 1 << 60
"""Limits of version 1 from here on mean that there is none."""


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that may still be taken.

    Attributes:
        nbytes: the least that any limit leaves, 0 or more.
        limit: which limit that is, for messages.
    """

    nbytes: int
    limit: str


def available(directory: Path, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Available:
    """Ask every limit that applies to pages allocated in `directory` by this process."""
    status = os.statvfs(directory)
    space = Available(status.f_bavail * status.f_frsize, f"free space of the file system at {directory}")
    return min(space, memory(proc=proc, cgroups=cgroups), key=lambda one: one.nbytes)


def memory(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Available:
    """Ask every limit that applies to memory of this process."""
    found = [
        Available(max(0, left - MARGIN_BYTES), f"memory limit of the control group {group}")
        for group, left in _headrooms(proc, cgroups)
    ]
    node = _meminfo(proc).get("MemAvailable")
    if node is not None:
        found.append(Available(max(0, node - MARGIN_BYTES), "available memory of the node"))
    return min(found, key=lambda one: one.nbytes, default=Available(sys.maxsize, "no limit"))


def shortage() -> str | None:
    """Why nothing more may be taken: some limit leaves less than the margin. None while there is room."""
    left = memory()
    return None if left.nbytes else f"less than {MARGIN_BYTES} bytes are left of the {left.limit}"


def _headrooms(proc: Path, cgroups: Path) -> Iterator[tuple[str, int]]:
    """What each memory limit on the way to the root leaves, in bytes."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield from _version_2(cgroups, group)
        elif "memory" in controllers.split(","):
            yield from _version_1(cgroups / "memory", group)


def _version_2(root: Path, group: str) -> Iterator[tuple[str, int]]:
    for folder in _upwards(root, group, "memory.current"):
        limit = _number(folder / "memory.max")
        current = _number(folder / "memory.current")
        if limit is not None and current is not None:
            cache = _statistics(folder, "inactive_file", "active_file")
            yield str(folder), max(0, limit - current + cache)


def _version_1(root: Path, group: str) -> Iterator[tuple[str, int]]:
    for folder in _upwards(root, group, "memory.usage_in_bytes"):
        limit = _number(folder / "memory.limit_in_bytes")
        current = _number(folder / "memory.usage_in_bytes")
        if limit is not None and current is not None and limit < _UNLIMITED_V1:
            cache = _statistics(folder, "total_inactive_file", "total_active_file")
            yield str(folder), max(0, limit - current + cache)


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


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
