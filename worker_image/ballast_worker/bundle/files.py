# SPDX-License-Identifier: Apache-2.0
"""Opening the files of a bundle so that no path leaves it, and telling whether an open file has changed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from ballast_worker.bundle.errors import BundleError, MissingError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file it is and in which state, as `fstat` tells.

    Attributes:
        device: Number of the file system.
        inode: Number of the file.
        size: Bytes.
        mtime_ns: Time of the last change of its content, in nanoseconds; can be set back by anyone who may write.
        ctime_ns: Time of the last change of content or attributes, in nanoseconds; cannot be set.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, fd: int) -> FileIdentity:
        """The identity of an open file."""
        status = os.fstat(fd)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def open_directory(path: str) -> Iterator[int]:
    """The file descriptor of a bundle's directory.

    Raises:
        BundleError: `SourceNotFound` when it cannot be read (a `MissingError` when it does not exist), `BundleInvalid`
            when it is no directory.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(error, path, "a bundle is a directory") from error
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(directory: int, name: str, *, shown: str) -> int:
    """Open the regular file `name` in the open `directory` for reading; the caller closes it.

    Raises:
        BundleError: `SourceNotFound` when it may not be read (a `MissingError` when it is missing); `BundleInvalid` when the
            name is not a plain name, or names a link or anything but a regular file.
    """
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise BundleError("BundleInvalid", f"{shown}: {name!r} is not the plain name of a file inside the bundle")
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise _refused(error, f"{shown}: {name}", "files of a bundle are regular files, never links") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BundleError("BundleInvalid", f"{shown}: {name} is not a regular file")
    return fd


def read_file(directory: int, name: str, *, shown: str, limit: int) -> bytes:
    """All bytes of a small file.

    Raises:
        BundleError: As for `open_file`; `BundleInvalid` when it is longer than `limit` bytes.
    """
    fd = open_file(directory, name, shown=shown)
    with os.fdopen(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        if size > limit:
            raise BundleError("BundleInvalid", f"{shown}: {name} has {size} bytes; at most {limit} are read")
        pieces = []
        left = limit + 1
        try:
            while left and (piece := file.read(left)):
                pieces.append(piece)
                left -= len(piece)
        except OSError as error:
            raise BundleError("SourceNotFound", f"{shown}: {name} cannot be read: {error.strerror}") from error
        if not left:
            raise BundleError("SourceChanged", f"{shown}: {name} grew beyond {limit} bytes while it was read")
        return b"".join(pieces)


def _refused(error: OSError, what: str, rule: str) -> BundleError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK):
        return BundleError("BundleInvalid", f"{what}: {rule}")
    if isinstance(error, FileNotFoundError):
        return MissingError("SourceNotFound", f"{what} does not exist")
    if isinstance(error, PermissionError):
        return BundleError("SourceNotFound", f"{what} may not be read by user {os.getuid()}: {error.strerror}")
    return BundleError("SourceNotFound", f"{what} cannot be opened: {error.strerror}")
