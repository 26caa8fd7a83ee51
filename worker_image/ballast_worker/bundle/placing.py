# SPDX-License-Identifier: Apache-2.0
"""Writing beside a place and moving it there, so that readers and crashes never see half of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a new file, wait until it is on the disk, and return its bytes."""
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def replace_file(path: Path, data: bytes, *, mode: int) -> None:
    """Give a small file these bytes; returns when they would survive a crash of the machine.

    Raises:
        OSError: it cannot be written; it is then as before.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


@contextlib.contextmanager
def directory_beside(target: Path) -> Iterator[Path]:
    """An empty directory on the file system of `target`, removed at the end unless it was moved. Makes missing parents."""
    target.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".packing", dir=target.parent))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def move_into_place(directory: Path, target: Path, *, replace: bool) -> Path | None:
    """Give `directory` the name `target`.

    Readers find the old directory or the new one whole, and never none, where the file system can exchange two names
    (every local one of Linux can); elsewhere there is none for a moment.

    Args:
        directory: Beside `target`.
        target: Is there if `replace` is true, else not.
        replace: Give what has that name another one.

    Returns:
        Where that is now; None without `replace`. Whoever asked for it removes it.

    Raises:
        OSError: Something else is at `target`, or the file system failed; `target` is then as before.
    """
    _sync(directory)
    old = directory.with_suffix(".replaced") if replace else None
    if old is not None and _exchange(directory, target):
        directory.rename(old)
    else:
        if old is not None:
            target.rename(old)
        try:
            directory.rename(target)
        except OSError:
            if old is not None:
                old.rename(target)
            raise
    _sync(target.parent)
    return old


def _exchange(first: Path, second: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_working_directory, exchange = -100, 2
    if rename is None:
        return False
    done = rename(at_working_directory, os.fsencode(first), at_working_directory, os.fsencode(second), exchange)
    return bool(done == 0)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
