# SPDX-License-Identifier: Apache-2.0
"""What may be replaced by a bundle: another bundle, or an empty directory. Anything else is left alone."""

from __future__ import annotations

import os
from pathlib import Path

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.files import open_directory, read_file
from ballast_worker.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, read_manifest
from ballast_worker.bundle.parts import FUNCTION_FILE, WEIGHTS_FILE

_SHOWN = 3


def files_to_replace(target: Path, *, overwrite: bool) -> frozenset[str] | None:
    """Names of the files of the bundle at `target`, none for an empty directory; None when nothing is there.

    Raises:
        FileExistsError: Something is there and `overwrite` is false; or it is a link, a file, a mount point, the working
            directory, or a directory with anything that is no file of a bundle.
        OSError: It cannot be looked at.
    """
    if not os.path.lexists(target):
        return None
    if not overwrite:
        raise FileExistsError(f"{target} exists; pass overwrite=True (ballast-bundle pack --overwrite) to replace it")
    if target.is_symlink() or not target.is_dir():
        raise _kept(target, "is no directory")
    if target.samefile(Path.cwd()):
        raise _kept(target, "is the working directory")
    if target.is_mount():
        raise _kept(target, "is a mount point")
    with os.scandir(target) as entries:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    files = _files(target) if found.get(MANIFEST_FILE) else frozenset[str]()
    if strange := sorted(name for name, regular in found.items() if not regular or name not in files):
        names = ", ".join(map(repr, strange[:_SHOWN])) + (", ..." if len(strange) > _SHOWN else "")
        raise _kept(target, f"holds {names}, which {'is' if len(strange) == 1 else 'are'} no bundle's")
    return frozenset(found)


def remove_bundle(directory: Path, files: frozenset[str]) -> None:
    """Remove a directory that was replaced and these files in it, and nothing that has come since.

    Raises:
        FileExistsError: It holds something else, or cannot be removed.
    """
    try:
        for name in files:
            (directory / name).unlink()
        directory.rmdir()
    except OSError as error:
        raise FileExistsError(
            f"the bundle is in its place, but what it replaced stays at {directory}: {error.strerror}"
        ) from error


def _files(target: Path) -> frozenset[str]:
    """What the files of a bundle are called, by its manifest where that can be read."""
    try:
        with open_directory(str(target)) as directory:
            manifest = read_manifest(read_file(directory, MANIFEST_FILE, shown=str(target), limit=MAX_MANIFEST_BYTES))
    except BundleError:
        return frozenset({MANIFEST_FILE, FUNCTION_FILE, WEIGHTS_FILE})
    return frozenset({MANIFEST_FILE, manifest.function.file, manifest.weights.file})


def _kept(target: Path, what: str) -> FileExistsError:
    return FileExistsError(
        f"{target} {what} and is left alone: only a bundle or an empty directory is replaced; name another place"
    )
