# SPDX-License-Identifier: Apache-2.0
"""Byte-range locks of open file descriptions: between processes and between threads, and the kernel drops those of the dead.

The bytes that are locked need not exist in the file. A lock belongs to the open file description, so whoever opens the
file once more is somebody else, in the same process too. Conversion between shared and exclusive is atomic.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from enum import Enum
from types import TracebackType
from typing import Self

# struct flock: l_type, l_whence, l_start, l_len, l_pid, which has to be 0 for these locks.
_FLOCK = struct.Struct("hhqqi4x")


class Holding(Enum):
    """Whether and how a byte is locked."""

    FREE = "free"
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


def held_by_others(fd: int, offset: int) -> Holding:
    """How others than the open file description of `fd` hold a byte, without touching it."""
    raw = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
    kind = _FLOCK.unpack(raw)[0]
    return {fcntl.F_UNLCK: Holding.FREE, fcntl.F_RDLCK: Holding.SHARED}.get(kind, Holding.EXCLUSIVE)


class Locks:
    """An open file description that holds any number of byte locks; closing it gives all of them back."""

    def __init__(self, fd: int) -> None:
        """Open the file behind `fd` once more: the same file, whatever its name is by now."""
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait_exclusive(self, offset: int) -> None:
        """Lock a byte for itself alone; waits as long as somebody else has it."""
        self._set(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, offset)

    def try_exclusive(self, offset: int) -> bool:
        """Lock a byte for itself alone if nobody else has it."""
        return self._try(fcntl.F_WRLCK, offset)

    def try_shared(self, offset: int) -> bool:
        """Lock a byte together with others if nobody has it alone; converts an own exclusive lock."""
        return self._try(fcntl.F_RDLCK, offset)

    def unlock(self, offset: int) -> None:
        """Give a byte back; nothing happens when it is not held."""
        self._set(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, offset)

    def close(self) -> None:
        """Give everything back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _try(self, kind: int, offset: int) -> bool:
        try:
            self._set(fcntl.F_OFD_SETLK, kind, offset)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _set(self, command: int, kind: int, offset: int) -> None:
        fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
