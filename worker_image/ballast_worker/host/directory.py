# SPDX-License-Identifier: Apache-2.0
"""The directory of a host pool: whose it is, its table, its locks, and what to do with one that is not understood."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.lockbytes import ALLOCATION_BYTE, PRESENCE_BYTE, TABLE_BYTE
from ballast_worker.host.locks import Locks
from ballast_worker.host.table import TableFile

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

    def __init__(self, path: Path, *, segment_bytes: int, mode: int | None, boot: str | None = None) -> None:
        """Open the directory, make it when it is missing, and make or recover its table.

        A table that is not understood is made anew when nobody uses the pool.

        Args:
            path: of the directory; its parent must exist or can be made.
            segment_bytes: for a new table.
            mode: permission bits of files; None: those of the table that is there.
            boot: in place of the node's boot id.

        Raises:
            HostPoolError: the directory or table may not be trusted, or somebody uses a table that is not understood.
            OSError: the file system failed.
        """
        if mode is not None and mode & 0o002:
            raise HostPoolError(
                f"file mode {mode:04o} would let every user of the node change weights: set host.fileMode to 0660 or 0600"
            )
        self.path = path
        self.fd = _open_directory(path, 0o600 if mode is None else mode)
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

    def locks(self) -> Locks:
        """A new holder of locks."""
        return Locks(self._table_fd)

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
            _check_file(fd, self.fd, shown, nbytes=nbytes)
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

    def _open_table(self, mode: int | None) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if mode is None else os.O_CREAT)
        try:
            fd = os.open(TABLE_FILE, flags, mode or 0, dir_fd=self.fd)
        except OSError as error:
            raise HostPoolError(f"{self.path / TABLE_FILE} cannot be opened: {error.strerror}") from error
        try:
            _check_file(fd, self.fd, str(self.path / TABLE_FILE))
            status = os.fstat(fd)
            if mode is not None and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
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

    def alone(self) -> bool:
        """Whether nobody else uses the pool. Hold the table's lock."""
        if not self._presence.try_exclusive(PRESENCE_BYTE):
            return False
        self._presence.try_shared(PRESENCE_BYTE)
        return True


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
        _check_directory(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_directory(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()):
        raise HostPoolError(
            f"{path} belongs to user {status.st_uid}; it must belong to root or to user {os.geteuid()}, who runs this worker"
        )
    if status.st_mode & 0o002:
        raise HostPoolError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: every user of the node could put weights there; "
            "take the right to write from others (chmod o-w)"
        )


def _check_file(fd: int, directory: int, shown: str, *, nbytes: int | None = None) -> None:
    status, folder = os.fstat(fd), os.fstat(directory)
    if not stat.S_ISREG(status.st_mode) or status.st_dev != folder.st_dev:
        raise HostPoolError(f"{shown} is not a regular file of the pool's own file system")
    group_shared = bool(folder.st_mode & 0o020) and status.st_gid == folder.st_gid
    if status.st_uid not in (0, os.geteuid()) and not group_shared:
        raise HostPoolError(
            f"{shown} belongs to user {status.st_uid} and group {status.st_gid}; files of the pool belong to root, to user "
            f"{os.geteuid()}, or to the group of a directory that is shared by it"
        )
    if status.st_mode & 0o002:
        raise HostPoolError(
            f"{shown} has mode {stat.S_IMODE(status.st_mode):04o}: every user of the node may change it"
        )
    if nbytes is not None and status.st_size != nbytes:
        raise HostPoolError(f"{shown} has {status.st_size} bytes; segments of this pool have {nbytes}")
