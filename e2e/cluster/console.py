# SPDX-License-Identifier: Apache-2.0
"""Progress lines, and the one error type whose message is meant for the person at the terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STARTED = time.monotonic()
_LOCK = threading.Lock()


class ClusterError(Exception):
    """Says what is wrong, with the value, and what to do about it."""


def say(text: str) -> None:
    """Print one progress line with the seconds since the program started."""
    with _LOCK:
        print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what begins, and how long it took once it has ended well."""
    say(f"{what} ...")
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


def tail(log: Path | None, lines: int = 15) -> list[str]:
    """Return the last lines of a log, under a line that names it; nothing when there is none."""
    if log is None or not log.exists():
        return []
    return [f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-lines:]]
