# SPDX-License-Identifier: Apache-2.0
"""Removing a host pool from its node: for the pool of a WeightBudget that was deleted."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ballast_worker.host.directory import SEGMENT_PREFIX, TABLE_FILE
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.lockbytes import PRESENCE_BYTE, TABLE_BYTE
from ballast_worker.host.locks import Locks

_STAYS = (errno.EBUSY, errno.EACCES, errno.EPERM)
"""The directory is a mount point, or its parent belongs to somebody else: it stays, empty."""


def remove(path: Path) -> bool:
    """Remove a pool that nobody uses: its segments, its table, and its directory where this process may.

    Nothing in it is read or trusted, so a pool of any version or boot, or a damaged one, can be removed. Killed anywhere,
    the next call goes on. A worker that opens the pool meanwhile is either seen here, or finds that it is gone.

    Args:
        path: the pool's own directory.

    Returns:
        True when there is no pool any more, also when there was none; False when a process uses it: it is as before.

    Raises:
        HostPoolError: the directory has something else in it, or this user may not remove what is in it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise HostPoolError(f"{path} must be a directory that this user may read: {error.strerror}") from error
    try:
        if strange := [name for name in _names(fd) if name != TABLE_FILE and not name.startswith(SEGMENT_PREFIX)]:
            raise HostPoolError(f"{path} is not only a host pool: it has {', '.join(sorted(strange)[:3])}; left alone")
        try:
            if not _empty(fd):
                return False
        except OSError as error:
            raise HostPoolError(f"the host pool at {path} cannot be removed: {error.strerror}") from error
    finally:
        os.close(fd)
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _STAYS:
            raise HostPoolError(f"{path} cannot be removed: {error.strerror}") from error
    return True


def _empty(directory: int) -> bool:
    """Unlink every file of the pool, the table last; False when somebody uses it."""
    if not _names(directory):
        return True
    # Made where it is missing: without its lock, a worker could begin the pool between a look and an unlink.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        table = os.open(TABLE_FILE, flags, 0o600, dir_fd=directory)
        stack.callback(os.close, table)
        locks = stack.enter_context(Locks(table))
        # Whoever opens the pool takes this first, and then looks whether the table still has a name.
        locks.wait_exclusive(TABLE_BYTE)
        if not locks.try_exclusive(PRESENCE_BYTE):
            return False
        for name in sorted(_names(directory)):  # the table comes after the segments
            os.unlink(name, dir_fd=directory)
    return True


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as found:
        return [one.name for one in found]
