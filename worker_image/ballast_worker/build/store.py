# SPDX-License-Identifier: Apache-2.0
"""The executable store: a directory of serialised executables and what was measured of them.

Executables are code, so nothing in the directory is believed for its name: an entry is a record, written last, that
states the whole key and the digest of the one file it speaks of. An entry that cannot be read, or whose file is not the
recorded one, is removed and built again. A record is as old as its last use (see `sweep`). Several workers may share the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ballast_worker.build.builder import BuiltProgram, Dimensions
from ballast_worker.build.errors import StoreError
from ballast_worker.build.record import MAX_RECORD_BYTES, Measured, file_name, parse, render
from ballast_worker.build.sweep import record_of, sweep
from ballast_worker.bundle.errors import BundleError, MissingError
from ballast_worker.bundle.files import open_directory, open_file, read_file
from ballast_worker.bundle.placing import replace_file

_log = logging.getLogger(__name__)

_MAX_EXECUTABLE_BYTES: Final = 2 << 30
_FILE_MODE: Final = 0o640


@dataclass(frozen=True, slots=True)
class Runtime:
    """What an executable depends on besides its program. Two processes with equal runtimes use each other's.

    Attributes:
        backend: cpu or cuda.
        device_kind: as the runtime names the device; on cpu also a digest of the processor's features.
        jax, jaxlib: versions.
        driver: version of the device driver; empty on cpu.
        libraries: versions of what the compiler links against or generates code with.
        flags: environment that changes what the compiler does.
    """

    backend: str
    device_kind: str
    jax: str
    jaxlib: str
    driver: str
    libraries: tuple[tuple[str, str], ...]
    flags: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """The identity of an executable: equal keys, equal meaning."""

    bundle: str
    dimensions: Dimensions
    runtime: Runtime

    def canonical(self) -> str:
        """The key as JSON, the same text for the same key."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def fields(self) -> Any:
        """The key as a record holds it."""
        return json.loads(self.canonical())

    def name(self) -> str:
        """Stem of the entry's file names."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One executable of the store, its file checked against its digest, and the context of the run that measured it."""

    program: BuiltProgram
    context_bytes: int


class ExecutableStore:
    """Executables in `root`, which is made when it is missing. Any thread, any process."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open the store.

        Args:
            root: its directory.
            clock: seconds since the epoch.

        Raises:
            StoreError: the directory cannot be made.
        """
        self._clock = clock
        self.root = root.expanduser()
        try:
            self.root.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError.of(self.root, error) from error

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, or None; a damaged one is removed first."""
        record = self._record(key)
        self._touch(record)  # before it is read, so that what was found is not swept
        try:
            with open_directory(str(self.root)) as root:
                return self._read(key, root, record.name)
        except MissingError:
            return None
        except (BundleError, OSError, ValueError) as error:
            _log.warning("the entry %s of the executable store is damaged and is built again: %s", record, error)
            _remove(record)
            return None

    def put(self, key: Key, data: bytes, measured: Measured) -> BuiltProgram:
        """Store an executable; after a crash at any point there is the whole entry or none.

        Raises:
            StoreError: the directory cannot be written.
        """
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        file = self.root / file_name(key.name(), digest)
        record = render(key.fields(), file.name, digest, measured)
        try:
            replace_file(file, data, mode=_FILE_MODE)
            replace_file(self._record(key), record, mode=_FILE_MODE)
        except OSError as error:
            raise StoreError.of(self.root, error) from error
        return _program(key, file, digest, measured)

    def tend(self, used: Iterable[BuiltProgram]) -> None:
        """Note which entries are in use, then remove what crashes left and what nobody used for long; see `sweep`."""
        for program in used:
            self._touch(record_of(program.file))
        try:
            sweep(self.root, now=self._clock())
        except OSError as error:
            _log.warning("the executable store %s cannot be swept: %s", self.root, error)

    def _touch(self, record: Path) -> None:
        now = self._clock()
        with contextlib.suppress(OSError):  # there is none, or it may only be read
            os.utime(record, (now, now), follow_symlinks=False)

    def _record(self, key: Key) -> Path:
        return self.root / f"{key.name()}.json"

    def _read(self, key: Key, root: int, name: str) -> Entry:
        """The entry of a record in the open directory; MissingError without one, and other errors for a damaged one."""
        text = read_file(root, name, shown=str(self.root), limit=MAX_RECORD_BYTES)
        digest, measured = parse(text, key=key.fields(), stem=key.name())
        file = self.root / file_name(key.name(), digest)
        try:
            found = _digest(root, file)
        except BundleError as error:
            _remove(file)
            raise ValueError(str(error)) from error
        if found != digest:
            _remove(file)
            raise ValueError(f"{file.name} has digest {found}, not {digest}")
        return Entry(_program(key, file, digest, measured), measured.context_bytes)


def read_executable(file: Path) -> bytes:
    """All bytes of an executable's file, which may be anything by now: only a regular file is read.

    Raises:
        BundleError: it cannot be read, or is none.
    """
    with open_directory(str(file.parent)) as root:
        return read_file(root, file.name, shown=str(file.parent), limit=_MAX_EXECUTABLE_BYTES)


def _digest(root: int, file: Path) -> str:
    descriptor = open_file(root, file.name, shown=str(file.parent))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        if (size := os.fstat(descriptor).st_size) > _MAX_EXECUTABLE_BYTES:
            raise BundleError("BundleInvalid", f"{file} has {size} bytes; at most {_MAX_EXECUTABLE_BYTES} are read")
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a directory, or it may only be read: then it is told when it is to be written
        path.unlink()


def _program(key: Key, file: Path, digest: str, measured: Measured) -> BuiltProgram:
    return BuiltProgram(
        dimensions=key.dimensions,
        file=file,
        digest=digest,
        scratch_bytes=measured.scratch_bytes,
        io_bytes=measured.io_bytes,
        code_bytes=measured.code_bytes,
        run_seconds=measured.run_seconds,
    )
