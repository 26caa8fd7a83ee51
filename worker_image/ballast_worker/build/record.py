# SPDX-License-Identifier: Apache-2.0
"""A record of the executable store: of which program and file it speaks and what was measured, and nothing that cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ballast_worker.bundle.limits import MAX_BYTES

MAX_RECORD_BYTES: Final = 64 << 10
_VERSION: Final = 1
_MAX_SECONDS: Final = 1e6
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


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


def file_name(stem: str, digest: str) -> str:
    """Name of an executable's file. The content is part of it: two writers of one key never mix one's record with the
    other's file.
    """
    return f"{stem}-{digest.removeprefix('sha256:')[:16]}.executable"


def render(key: Any, file: str, digest: str, measured: Measured) -> bytes:
    """A record as JSON."""
    record = {"version": _VERSION, "key": key, "file": file, "digest": digest, **asdict(measured)}
    return json.dumps(record, sort_keys=True, indent=1).encode()


def parse(text: bytes, *, key: Any, stem: str) -> tuple[str, Measured]:
    """The digest of the executable's file, and what was measured.

    Args:
        text: of a record.
        key: of which it must be.
        stem: of the name of its file.

    Raises:
        ValueError: it is damaged, or of another key or file.
    """
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict) or fields.get("version") != _VERSION or fields.get("key") != key:
        raise ValueError("it is of another key")
    digest = fields.get("digest")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ValueError("it has no digest")
    if fields.get("file") != file_name(stem, digest):
        raise ValueError("it is of another file")
    seconds = fields.get("run_seconds")
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"run_seconds is {seconds!r}, not a time between 0 and {_MAX_SECONDS:g}")
    measured = Measured(
        scratch_bytes=_size(fields, "scratch_bytes"),
        io_bytes=_size(fields, "io_bytes"),
        code_bytes=_size(fields, "code_bytes"),
        run_seconds=float(seconds),
        context_bytes=_size(fields, "context_bytes"),
    )
    return digest, measured


def _size(fields: Mapping[str, Any], name: str) -> int:
    size = fields.get(name)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_BYTES:
        raise ValueError(f"{name} is {size!r}, not a size between 0 and {MAX_BYTES}")
    return size
