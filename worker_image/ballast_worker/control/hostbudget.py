# SPDX-License-Identifier: Apache-2.0
"""How much host memory copies of weights may take, and what was found on the machine."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_contract.config import Host
from ballast_worker.host import limits

PROCESS_BYTES: Final = 2 << 30
"""Left to the worker's own process and its builders when the budget is automatic."""

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs"})


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Host memory as found at start; bytes.

    Attributes:
        mount: where the file system of the pool is mounted.
        mount_total: its size.
        mount_free: free in it, together with what the pool holds already.
        limit: the tightest memory limit of the container; None without one.
        free: what such limits leave, or what the machine has, together with what the pool holds, where that is less.
        node: memory of the whole node; None where it does not tell.
        in_memory: the file system keeps its files in memory: only there an automatic budget takes anything.
    """

    mount: Path
    mount_total: int
    mount_free: int
    limit: int | None
    free: int
    node: int | None = None
    in_memory: bool = True


def describe(pool: Path, *, proc: Path = limits.PROC, cgroups: Path = limits.CONTROL_GROUPS) -> HostFacts:
    """The facts of this machine for a pool in a directory."""
    mount = next(path for path in (pool, *pool.parents) if path.exists())
    while not mount.is_mount():
        mount = mount.parent
    status = os.statvfs(mount)
    held = _held(pool)
    groups = list(limits.groups(proc=proc, cgroups=cgroups))
    free = min([(limits.available_of_node(proc=proc) or 0) + held, *(group.left for group in groups)])
    limit = min((group.limit for group in groups), default=None)
    total, left = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    in_memory = _kind(mount, proc) in _IN_MEMORY
    return HostFacts(mount, total, left + held, limit, free, limits.total_of_node(proc=proc), in_memory)


def resolve(config: Host, facts: HostFacts, *, process: int, useful: int | None, workers: int) -> int | None:
    """The budget of this worker's pool in bytes; None is unlimited.

    Args:
        config: `host`.
        facts: of the machine.
        process: bytes that this process will take besides `PROCESS_BYTES`: the copy ring, and on cpu the arena.
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
    return _segments(config, min(facts.mount_free, facts.free - process - PROCESS_BYTES) // share, useful)


def most(config: Host, facts: HostFacts, *, useful: int | None) -> int:
    """Bytes that an unlimited pool may come to: as many as mount and memory limit allow, of which `useful` as in `resolve`.
    What is free changes all the time, and a plan with it: that counts only where there is no limit.

    A pool that the workers of a node share comes to what the mount and the node can hold: others' copies are mapped here
    too, and count against the others' limits.
    """
    if config.sharing == "node":
        return _segments(config, min(facts.mount_total, facts.node or facts.mount_total), None)
    return _segments(config, min(facts.mount_total, facts.free if facts.limit is None else facts.limit), useful)


def _segments(config: Host, room: int, useful: int | None) -> int:
    """Bytes of the whole segments that there is room for and use of."""
    if useful is not None:
        room = min(room, -(-useful // config.segment_bytes) * config.segment_bytes)
    return max(0, room // config.segment_bytes * config.segment_bytes)


def _held(pool: Path) -> int:
    """Bytes of a pool's files. Those that go meanwhile, or of which this user may not know, are not there."""
    found = 0
    with contextlib.suppress(OSError):
        for entry in pool.iterdir():
            with contextlib.suppress(OSError):
                found += entry.stat().st_blocks * 512
    return found


def _kind(mount: Path, proc: Path) -> str:
    """Type of the file system mounted there; the last mount wins."""
    found = ""
    for line in (proc / "self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, where, kind, *_ = line.split(" ")
        if where == str(mount):
            found = kind
    return found
