# SPDX-License-Identifier: Apache-2.0
"""Running the machine's tools for minutes at a time: output to a log, and its end in the error when one fails."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.console import ClusterError, tail
from e2e.cluster.settings import cache_home

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Home:
    """Folders of the cache that all checkouts share."""

    folder: Path

    @classmethod
    def default(cls) -> Home:
        """Return the cache of this user, with its folders made."""
        home = cls(cache_home())
        for folder in (home.bin, home.logs, home.images, home.keys):
            folder.mkdir(parents=True, exist_ok=True)
        return home

    @property
    def bin(self) -> Path:
        """Binaries."""
        return self.folder / "bin"

    @property
    def logs(self) -> Path:
        """Output of the builds."""
        return self.folder / "logs"

    @property
    def images(self) -> Path:
        """Images in the form that nodes are given."""
        return self.folder / "images"

    @property
    def keys(self) -> Path:
        """What each product was made from."""
        return self.folder / "keys"


def run_logged(
    home: Home,
    name: str,
    *argv: object,
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    each_line: Callable[[str], None] | None = None,
) -> None:
    """Run a tool with its output in a log of this name; each_line sees the lines as they come."""
    words = [str(word) for word in argv]
    log = home.logs / f"{name}.log"
    with log.open("a") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | dict(extra or {}),
            cwd=cwd,
        ) as process:
            for line in process.stdout or ():
                file.write(line)
                if each_line:
                    each_line(line)
    if process.returncode:
        raise ClusterError("\n".join([f"{shlex.join(words)} ended with {process.returncode}", *tail(log, 25)]))


def output_of(*argv: object) -> str:
    """Return what a tool prints, empty when it fails or does not exist."""
    try:
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
