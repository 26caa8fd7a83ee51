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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ballast_worker.build.builder import BuiltProgram, Dimensions
from ballast_worker.build.sweep import record_of, sweep
from ballast_worker.bundle.placing import replace_file

_log = logging.getLogger(__name__)

_RECORD_VERSION: Final = 1
_MAX_RECORD_BYTES: Final = 64 << 10
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

    def name(self) -> str:
        """Stem of the entry's file names."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a program on zero weights showed. Bytes of device memory, seconds of the second run.

    Attributes:
        scratch_bytes, io_bytes, code_bytes, run_seconds: see `BuiltProgram`.
        context_bytes: driver context and libraries of the builder after the run; 0 on cpu.
    """

    scratch_bytes: int
    io_bytes: int
    code_bytes: int
    run_seconds: float
    context_bytes: int


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
            OSError: the directory cannot be made.
        """
        self._clock = clock
        self.root = root.expanduser()
        self.root.mkdir(mode=0o750, parents=True, exist_ok=True)

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, or None; a damaged one is removed first."""
        record = self._record(key)
        self._touch(record)  # before it is read, so that what was found is not swept
        try:
            entry = self._read(key, record)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            with contextlib.suppress(OSError):
                record.unlink()
            return None
        return entry

    def put(self, key: Key, data: bytes, measured: Measured) -> BuiltProgram:
        """Store an executable; after a crash at any point there is the whole entry or none.

        Raises:
            OSError: the directory cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        # The content is part of the name: two writers of one key never mix one's record with the other's file.
        file = self.root / f"{key.name()}-{digest[:16]}.executable"
        replace_file(file, data, mode=_FILE_MODE)
        record = {
            "version": _RECORD_VERSION,
            "key": json.loads(key.canonical()),
            "file": file.name,
            "digest": f"sha256:{digest}",
            **asdict(measured),
        }
        replace_file(self._record(key), json.dumps(record, sort_keys=True, indent=1).encode(), mode=_FILE_MODE)
        return _program(key, file, f"sha256:{digest}", measured)

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
            os.utime(record, (now, now))

    def _record(self, key: Key) -> Path:
        return self.root / f"{key.name()}.json"

    def _read(self, key: Key, record: Path) -> Entry:
        with record.open("rb") as stream:
            text = stream.read(_MAX_RECORD_BYTES + 1)
        if len(text) > _MAX_RECORD_BYTES:
            raise ValueError("record too long")
        fields: Mapping[str, Any] = json.loads(text)
        if fields["version"] != _RECORD_VERSION or fields["key"] != json.loads(key.canonical()):
            raise ValueError("record of another key")
        name, digest = fields["file"], fields["digest"]
        if not isinstance(name, str) or name != f"{key.name()}-{digest.removeprefix('sha256:')[:16]}.executable":
            raise ValueError("record of another file")
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError as error:
            raise ValueError("record without its file") from error
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            (self.root / name).unlink(missing_ok=True)
            raise ValueError("file with another digest")
        measured = Measured(
            scratch_bytes=int(fields["scratch_bytes"]),
            io_bytes=int(fields["io_bytes"]),
            code_bytes=int(fields["code_bytes"]),
            run_seconds=float(fields["run_seconds"]),
            context_bytes=int(fields["context_bytes"]),
        )
        return Entry(_program(key, self.root / name, digest, measured), measured.context_bytes)


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
