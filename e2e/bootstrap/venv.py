# SPDX-License-Identifier: Apache-2.0
"""The virtual environment of the repository, made anew only when what it holds has changed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from e2e.bootstrap import installer
from e2e.bootstrap.keys import key_of
from e2e.bootstrap.tools import REPOSITORY, Home, output_of, run_logged
from e2e.cluster.console import ClusterError, say, timed

_EXTRAS = "operator,worker,dev"
_OLDEST = (3, 11)
_ASK = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


def make(home: Home) -> None:
    """Make .venv with everything that the tests need."""
    folder = REPOSITORY / ".venv"
    python = folder / "bin" / "python"
    note = folder / "ballast.key"
    version = output_of(python, "-c", "import sys; print(*sys.version_info[:2])")
    sources = [path for path in (REPOSITORY / "pyproject.toml", REPOSITORY / "constraints.txt") if path.exists()]
    if version and note.exists() and note.read_text() == key_of(version, _EXTRAS, *sources):
        say(f"venv: up to date (Python {version.replace(' ', '.')})")
        return
    interpreter = _interpreter()
    uv, extra = installer.uv(home, interpreter), installer.settings(home)
    if not version:
        shutil.rmtree(folder, ignore_errors=True)
        with timed(f"venv: made with {interpreter}"):
            run_logged(home, "venv", uv, "venv", "--seed", "--python", interpreter, folder, extra=extra)
        version = output_of(python, "-c", "import sys; print(*sys.version_info[:2])")
    with timed(f"venv: ballast[{_EXTRAS}] and what it needs"):
        argv = [uv, "pip", "install", "--python", python, "-c", "constraints.txt", "-e", f".[{_EXTRAS}]"]
        run_logged(home, "venv", *argv, cwd=REPOSITORY, extra=extra)
    note.write_text(key_of(version, _EXTRAS, *sources))


def _interpreter() -> str:
    """Return a Python that is new enough and can make environments; the versions with proven wheels come first."""
    names = ["python3.11", "python3.12", "python3", "python3.13", sys.executable, "/usr/bin/python3"]
    seen = []
    for name in dict.fromkeys(names):
        place = shutil.which(name)
        answer = output_of(place, "-c", _ASK) if place else ""
        if answer and tuple(map(int, answer.split())) >= _OLDEST:
            return os.path.realpath(place) if place and Path(place).is_symlink() else str(place)
        seen.append(f"{name} ({answer or 'not there, or without ensurepip'})")
    raise ClusterError(f"no Python {'.'.join(map(str, _OLDEST))} or newer; tried {', '.join(seen)}")
