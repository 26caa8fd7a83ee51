# SPDX-License-Identifier: Apache-2.0
"""The directory of a host pool: whose it is, its table, its locks, and what to do with one that is not understood."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.lockbytes import ALLOCATION_BYTE, PRESENCE_BYTE, TABLE_BYTE
from ballast_worker.host.locks import Holding, Locks, held_by_others
from ballast_worker.host.table_file import TableFile
from ballast_worker.host.trust import OTHERS_WRITE, check_directory, check_file

_log = logging.getLogger(__name__)

TABLE_FILE = "table"
SEGMENT_PREFIX = "segment-"


def boot_id() -> str:
    """What tells one start of the node from the next."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class PoolDirectory:
    """An open and trusted pool directory. Safe to use from several threads.

    Attributes:
        path: where it is.
        fd: the open directory.
        table: its table.
        mode: permission bits of files that are made in it.
    """

    def __init__(self, path: Path, *, segment_bytes: int, mode: int, boot: str | None = None) -> None:
        """Open the directory, make it when it is missing, and make or recover its table.

        A table that is not understood is made anew when nobody uses the pool.

        Args:
            path: of the directory; its parent must exist or can be made.
            segment_bytes: for a new table.
            mode: permission bits of files. With the right to write for everybody, everybody is trusted, after a warning.
            boot: in place of the node's boot id.

        Raises:
            HostPoolError: the directory or table may not be trusted, or somebody uses a table that is not understood.
            OSError: the file system failed.
        """
        self._everybody = bool(mode & OTHERS_WRITE)
        if self._everybody:
            _log.warning(
                "file mode %04o lets every user of the node change the weights in %s: set host.fileMode to 0660 or 0600",
                mode,
                path,
            )
        self.path = path
        self.fd = _open_directory(path, mode)
        self._lock = threading.Lock()
        try:
            self._table_fd = self._open_table(mode)
            self.mode = stat.S_IMODE(os.fstat(self._table_fd).st_mode)
            self.table = TableFile(self._table_fd, str(path / TABLE_FILE))
            self._table_lock = Locks(self._table_fd)
            self._presence = Locks(self._table_fd)
            with self.locked():
                self._recover(segment_bytes, boot_id() if boot is None else boot)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table's lock. For bookkeeping only."""
        with self._lock:
            self._table_lock.wait_exclusive(TABLE_BYTE)
            try:
                yield
            finally:
                self._table_lock.unlock(TABLE_BYTE)

    @contextlib.contextmanager
    def locked_if_free(self) -> Iterator[bool]:
        """Hold the table's lock, or answer False when somebody else has it. For bookkeeping only."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            locked = self._table_lock.try_exclusive(TABLE_BYTE)
            try:
                yield locked
            finally:
                if locked:
                    self._table_lock.unlock(TABLE_BYTE)
        finally:
            self._lock.release()

    def locks(self) -> Locks:
        """A new holder of locks."""
        return Locks(self._table_fd)

    def holding(self, byte: int) -> Holding:
        """How a byte is locked now, by whomever, without touching it."""
        return held_by_others(self._table_fd, byte)

    @contextlib.contextmanager
    def allocating(self, *, wait: bool) -> Iterator[bool]:
        """Hold the allocation lock, or answer False when somebody else has it and `wait` is false."""
        with self.locks() as locks:
            if wait:
                locks.wait_exclusive(ALLOCATION_BYTE)
                yield True
            else:
                yield locks.try_exclusive(ALLOCATION_BYTE)

    def segment_files(self) -> set[int]:
        """Numbers of the segment files that are there, in the table or not."""
        with os.scandir(self.fd) as found:
            names = [one.name.removeprefix(SEGMENT_PREFIX) for one in found if one.name.startswith(SEGMENT_PREFIX)]
        return {int(name) for name in names if name.isdigit()}

    def open_segment(self, number: int, *, nbytes: int, writable: bool) -> int:
        """Open a segment file.

        Raises:
            HostPoolError: it is missing, has another size, or may not be trusted.
        """
        name = segment_name(number)
        shown = str(self.path / name)
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(name, flags, dir_fd=self.fd)
        except OSError as error:
            raise HostPoolError(f"{shown} cannot be opened: {error.strerror}") from error
        try:
            check_file(fd, self.fd, shown, everybody=self._everybody, nbytes=nbytes)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def has_segment(self, number: int) -> bool:
        """Whether the segment's file is there and can be used."""
        try:
            os.close(self.open_segment(number, nbytes=self.table.segment_bytes, writable=True))
        except HostPoolError:
            return False
        return True

    def create_segment(self, number: int, *, nbytes: int) -> None:
        """Make a segment file with all its memory. Hold the allocation lock.

        Raises:
            OSError: no space; nothing is left.
        """
        name = segment_name(number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, self.mode, dir_fd=self.fd)
        try:
            os.fchmod(fd, self.mode)
            os.posix_fallocate(fd, 0, nbytes)
        except BaseException:
            os.unlink(name, dir_fd=self.fd)
            raise
        finally:
            os.close(fd)

    def remove_segment(self, number: int) -> None:
        """Remove a segment file, if it is there. Its memory is free when nobody maps it any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(segment_name(number), dir_fd=self.fd)

    def close(self) -> None:
        """Close everything, giving back the locks. Idempotent."""
        for locks in (getattr(self, "_presence", None), getattr(self, "_table_lock", None)):
            if locks is not None:
                locks.close()
        for name in ("_table_fd", "fd"):
            fd = getattr(self, name, -1)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def _open_table(self, mode: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(TABLE_FILE, flags, mode, dir_fd=self.fd)
        except OSError as error:
            raise HostPoolError(f"{self.path / TABLE_FILE} cannot be opened: {error.strerror}") from error
        try:
            check_file(fd, self.fd, str(self.path / TABLE_FILE), everybody=self._everybody)
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(fd, mode)  # the umask may have cut it
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _recover(self, segment_bytes: int, boot: str) -> None:
        if not os.fstat(self._table_fd).st_nlink:
            raise HostPoolError(f"the host pool at {self.path} was removed meanwhile: try again")
        alone = self._presence.try_exclusive(PRESENCE_BYTE)
        reason = self.table.understood(boot_id=boot)
        if reason is None and alone and self.table.segment_bytes != segment_bytes:
            reason = f"its segments have {self.table.segment_bytes} bytes, and {segment_bytes} are configured"
        if reason is not None:
            if not alone:
                raise HostPoolError(
                    f"the host pool at {self.path} cannot be used: {reason}, and other processes use it; end them, or "
                    "give this worker another host.directory"
                )
            # Files first: should this process die here, the table is still not understood and all begins anew.
            for number in self.segment_files():
                self.remove_segment(number)
            self.table.initialise(segment_bytes=segment_bytes, boot_id=boot)
        self._presence.try_shared(PRESENCE_BYTE)


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{SEGMENT_PREFIX}{number:06d}"


def _open_directory(path: Path, mode: int) -> int:
    # Who may read files may search the directory, and its group passes on to them.
    folder_mode = mode | (mode & 0o444) >> 2 | (stat.S_ISGID if mode & 0o060 else 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        path.chmod(folder_mode)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostPoolError(f"{path} must be a directory that this worker may read: {error.strerror}") from error
    try:
        check_directory(fd, path, everybody=bool(mode & OTHERS_WRITE))
    except BaseException:
        os.close(fd)
        raise
    return fd
