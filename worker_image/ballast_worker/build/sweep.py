# SPDX-License-Identifier: Apache-2.0
"""Removing from an executable store what nobody uses any more, so that its volume does not fill up.

Entries of bundles that are gone and of runtimes that were replaced are never asked for again. Their records' times of
modification, which every use renews, and a worker every day of what it serves, tell them from the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

UNUSED_SECONDS: Final = 30 * 86400.0
"""An entry that was not used for so long goes."""

ABANDONED_SECONDS: Final = 86400.0
"""What is half written after so long was left by a crash; another worker writes for seconds."""


def record_of(file: Path) -> Path:
    """The record of an executable's file."""
    return file.with_name(file.name.partition("-")[0] + ".json")


def sweep(root: Path, *, now: float) -> int:
    """Remove what crashes left and what was not used for long. Any number of workers may do so at once.

    A record goes before its file, as it comes after it: there is no entry without its file. Whoever writes an entry that
    goes at this very moment makes both new, or finds the record without its file the next time and builds again.

    Args:
        root: the store's directory.
        now: seconds since the epoch.

    Returns:
        Bytes removed.
    """
    freed = 0
    for path, limit in _stale(root):
        with contextlib.suppress(OSError):  # another worker was first, or may not let go of it
            status = path.stat()
            if now - status.st_mtime > limit:
                path.unlink()
                freed += status.st_size
    if freed:
        _log.info("%d bytes that were not used any more were removed from %s", freed, root)
    return freed


def _stale(root: Path) -> Iterator[tuple[Path, float]]:
    """Files that may go, and the age from which they do; files of records are looked for when those have gone."""
    for path in root.glob(".*.*"):
        yield path, ABANDONED_SECONDS
    for path in root.glob("*.json"):
        yield path, UNUSED_SECONDS
    for path in root.glob("*.executable"):
        if not record_of(path).exists():
            yield path, ABANDONED_SECONDS
