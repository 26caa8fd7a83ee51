# SPDX-License-Identifier: Apache-2.0
"""The folder of a host pool on a node: owned by root, writable by the group of a namespace, below a folder of root's own."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderError(Exception):
    """A folder that may not be trusted or changed; the message says which, why, and what to do."""


def prepare(pools: Path, name: str, *, group: int, file_mode: int) -> None:
    """Make the folder of one pool, or put owner, group and mode of an existing one right.

    Files that are made in it get its group. Who may read files may also list the folder, as `file_mode` says for others.

    Args:
        pools: the folder that holds all pools of the node.
        name: of the pool.
        group: id of the group whose members share the pool.
        file_mode: permission bits of the pool's files.

    Raises:
        FolderError: a folder may not be trusted, or the system refused.
    """
    others = file_mode & 0o004
    mode = stat.S_ISGID | 0o770 | others | others >> 2
    with _opened(pools) as parent:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise FolderError(f"{pools / name} cannot be made: {error.strerror}") from error
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                os.fchown(fd, os.geteuid(), group)
                os.fchmod(fd, mode)
                found = stat.S_IMODE(os.fstat(fd).st_mode)
            finally:
                os.close(fd)
        except OSError as error:
            raise FolderError(f"{pools / name} cannot be given to group {group}: {error.strerror}") from error
    if found != mode:  # the kernel takes the bit from whoever is not of the group, without a word
        raise FolderError(
            f"{pools / name} has mode {found:04o} instead of {mode:04o}: this process must be of group {group}"
        )


def remove(pools: Path, name: str) -> None:
    """Remove the folder of one pool with everything in it; one that is not there is removed already.

    Memory that a process still maps is free when that process ends.

    Raises:
        FolderError: a folder may not be trusted, or something in it cannot be removed.
    """
    with _opened(pools) as parent:
        try:
            shutil.rmtree(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FolderError(f"{pools / name} cannot be removed: {error.strerror}") from error


@contextmanager
def _opened(pools: Path) -> Iterator[int]:
    """The folder of all pools, opened, if nobody but its owner can put anything into it."""
    try:
        fd = os.open(pools, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"{pools} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise FolderError(
                f"{pools} belongs to user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):04o}: it must belong to "
                f"user {os.geteuid()}, and nobody else may write to it; remove it on the node, and it is made anew"
            )
        yield fd
    finally:
        os.close(fd)
