# SPDX-License-Identifier: Apache-2.0
"""The host's side of the plan: how much memory copies of weights may take, and whether what is configured can be had."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_contract.config import Host
from ballast_contract.quantities import ceil_api
from ballast_contract.reasons import Reason
from ballast_worker.control.models import Failure

PROCESS_BYTES: Final = 2 << 30
"""Left to the worker's own process and its builders when the budget is automatic."""

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})

_UNLIMITED: Final = 1 << 60
"""Limits above this mean none: cgroup v1 writes a huge number."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Host memory as found at start; bytes.

    Attributes:
        mount: where the file system of the pool is mounted.
        mount_total: its size.
        mount_free: free in it, together with what the pool holds already.
        limit: the container's memory limit; None without one.
        free: what the limit leaves, or what the machine has where there is no limit, together with what the pool holds.
        in_memory: the file system keeps its files in memory: only there an automatic budget takes anything.
    """

    mount: Path
    mount_total: int
    mount_free: int
    limit: int | None
    free: int
    in_memory: bool = True


def describe(pool: Path, *, root: Path = Path("/")) -> HostFacts:
    """The facts of this machine for a pool in a directory; `root` is where /proc and /sys are."""
    mount = next(path for path in (pool, *pool.parents) if path.exists())
    while not mount.is_mount():
        mount = mount.parent
    status = os.statvfs(mount)
    held = _held(pool)
    machine = _available(root) + held
    limit, used = _cgroup(root)
    free = machine if limit is None else min(machine, max(0, limit - used))
    total, left = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    in_memory = _kind(mount, root) in _IN_MEMORY
    return HostFacts(mount, total, left + held, limit, free, in_memory)


def resolve(config: Host, facts: HostFacts, *, process: int, useful: int | None, workers: int) -> int | None:
    """The budget of this worker's pool in bytes; None is unlimited.

    Args:
        config: `host`.
        facts: of the machine.
        process: bytes that this process will take besides: on cpu the arena.
        workers: that divide the budget where it is not shared.
        useful: bytes beyond which copies cannot be used, where that is known: an automatic budget stops there.
    """
    share = workers if config.sharing == "none" else 1
    if config.budget == "unlimited":
        return None
    if isinstance(config.budget, int):
        return config.budget // share
    if not facts.in_memory:
        return 0
    room = min(facts.mount_free, facts.free - process - PROCESS_BYTES) // share
    if useful is not None:
        room = min(room, -(-useful // config.segment_bytes) * config.segment_bytes)
    return max(0, room // config.segment_bytes * config.segment_bytes)


def check(config: Host, facts: HostFacts, *, process: int) -> Failure | None:
    """Why a configured budget can never be had here: it is refused at start, not found out by a kill."""
    if not isinstance(config.budget, int) or config.budget == 0:
        return None
    if config.budget > facts.mount_total:
        in_pods = "the mount (workers.resources.limits.memory in a pod)"
        larger = "the node's /dev/shm" if config.sharing == "node" else in_pods
        return Failure(
            Reason.SHM_TOO_SMALL,
            f"host.budget is {config.budget} bytes and {facts.mount} has {facts.mount_total}: lower host.budget to "
            f"{facts.mount_total >> 20}Mi, or make {larger} at least {ceil_api(config.budget)}",
        )
    need = config.budget + process
    if facts.limit is not None and need > facts.limit:
        return Failure(
            Reason.INSUFFICIENT_HOST_MEMORY,
            f"host.budget ({config.budget} bytes) and the worker's own memory ({process} bytes) exceed the container's "
            f"memory limit of {facts.limit} bytes: raise workers.resources.limits.memory to at least {ceil_api(need)}, or "
            f"lower host.budget to {max(0, facts.limit - process) >> 20}Mi",
        )
    return None


def _held(pool: Path) -> int:
    """Bytes of a pool's files. Those that go meanwhile, or of which this user may not know, are not there."""
    found = 0
    with contextlib.suppress(OSError):
        for entry in pool.iterdir():
            with contextlib.suppress(OSError):
                found += entry.stat().st_blocks * 512
    return found


def _kind(mount: Path, root: Path) -> str:
    """Type of the file system mounted there; the last mount wins."""
    found = ""
    for line in (root / "proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, where, kind, *_ = line.split(" ")
        if where == str(mount):
            found = kind
    return found


def _available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup(root: Path) -> tuple[int | None, int]:
    """The container's memory limit, None without one, and what it uses of it."""
    for limit, usage in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            most = (root / limit).read_text(encoding="ascii").strip()
            used = int((root / usage).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if most.isdigit() and int(most) < _UNLIMITED:
            return int(most), used
    return None, 0
