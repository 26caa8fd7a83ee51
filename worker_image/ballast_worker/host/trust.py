# SPDX-License-Identifier: Apache-2.0
"""What of a pool may be trusted: whose the directory and its files are, and who else may change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ballast_worker.host.errors import HostPoolError

OTHERS_WRITE = 0o002


def check_directory(fd: int, path: Path, *, everybody: bool) -> None:
    """Refuse a pool's directory into which a stranger could put weights.

    Args:
        fd: the open directory.
        path: its name in messages.
        everybody: the configured mode lets every user of the node change weights, so whose it is does not matter.

    Raises:
        HostPoolError: it belongs to somebody else, or everybody may write to it.
    """
    status = os.fstat(fd)
    if everybody:
        return
    if status.st_uid not in (0, os.geteuid()):
        raise HostPoolError(
            f"{path} belongs to user {status.st_uid}; it must belong to root or to user {os.geteuid()}, who runs this worker"
        )
    if status.st_mode & OTHERS_WRITE:
        raise HostPoolError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: every user of the node could put weights there; "
            "take the right to write from others (chmod o-w)"
        )


def check_file(fd: int, directory: int, shown: str, *, everybody: bool, nbytes: int | None = None) -> None:
    """Refuse a file of a pool that a stranger could have made or could change, or that has another size.

    Args:
        fd: the open file.
        directory: the open directory of the pool.
        shown: its name in messages.
        everybody: as for the directory.
        nbytes: the size that it must have.

    Raises:
        HostPoolError: it may not be trusted.
    """
    status, folder = os.fstat(fd), os.fstat(directory)
    if not stat.S_ISREG(status.st_mode) or status.st_dev != folder.st_dev:
        raise HostPoolError(f"{shown} is not a regular file of the pool's own file system")
    group_shared = bool(folder.st_mode & 0o020) and status.st_gid == folder.st_gid
    if not everybody and status.st_uid not in (0, os.geteuid()) and not group_shared:
        raise HostPoolError(
            f"{shown} belongs to user {status.st_uid} and group {status.st_gid}; files of the pool belong to root, to user "
            f"{os.geteuid()}, or to the group of a directory that is shared by it"
        )
    if not everybody and status.st_mode & OTHERS_WRITE:
        raise HostPoolError(
            f"{shown} has mode {stat.S_IMODE(status.st_mode):04o}: every user of the node may change it"
        )
    if nbytes is not None and status.st_size != nbytes:
        raise HostPoolError(f"{shown} has {status.st_size} bytes; segments of this pool have {nbytes}")
