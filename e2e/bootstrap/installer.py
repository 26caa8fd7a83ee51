# SPDX-License-Identifier: Apache-2.0
"""uv, which installs the Python packages of a checkout, and fetches a wheel once for all of them."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.bootstrap.tools import REPOSITORY, Home, output_of, run_logged
from e2e.cluster.console import ClusterError

_VERSIONS = REPOSITORY / "constraints.txt"


def uv(home: Home, interpreter: str) -> Path:
    """Return uv, installed with an interpreter where it is missing or another version."""
    folder = home.folder / "uv"
    place = folder / "bin" / "uv"
    if output_of(place, "--version").split()[1:2] != [wanted_version("uv")]:
        run_logged(home, "venv", interpreter, "-m", "venv", "--clear", folder)
        run_logged(home, "venv", folder / "bin" / "pip", "install", "--no-compile", "-c", _VERSIONS, "uv")
    return place


def wanted_version(package: str, versions: Path = _VERSIONS) -> str:
    """Return the version that the constraints give a package, the one that the images are made with too.

    Raises:
        ClusterError: they give it none.
    """
    for line in versions.read_text().splitlines():
        name, _, version = line.partition("#")[0].partition(";")[0].partition("==")
        if name.strip() == package and version.strip():
            return version.strip()
    raise ClusterError(f"{versions} gives {package} no version: write a line {package}==VERSION")


def settings(home: Home) -> dict[str, str]:
    """Return uv's settings: the certificates and the index that pip has here, and a cache that all checkouts share."""
    found = {
        "UV_CACHE_DIR": str(home.folder / "uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "true",
    }
    asked = (
        output_of(pip, "config", "get", "global.index-url") for pip in ("pip3", home.folder / "uv" / "bin" / "pip")
    )
    if index := os.environ.get("PIP_INDEX_URL") or next(filter(None, asked), ""):
        found["UV_DEFAULT_INDEX"] = index
    return found | {name: value for name, value in os.environ.items() if name.startswith("UV_")}
