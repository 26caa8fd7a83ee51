# SPDX-License-Identifier: Apache-2.0
"""Debian packages: installs what is missing, and asks apt for nothing when nothing is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from e2e.bootstrap.tools import Home, output_of, run_logged
from e2e.cluster.console import ClusterError, say, timed

# Package, and what it is needed for: a program on PATH or a file (a pattern of its path).
_NEEDED = {
    "buildah": "buildah",
    "ca-certificates": "/etc/ssl/certs/ca-certificates.crt",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "curl": "curl",
    "gcc": "gcc",
    "git": "git",
    "iproute2": "ip",
    "iptables": "iptables",
    "libc6-dev": "/usr/include/stdlib.h",
    "make": "make",
    "mmdebstrap": "mmdebstrap",
    "openssl": "openssl",
    "procps": "sysctl",
    "python3-venv": "/usr/lib/python3.*/ensurepip/__init__.py",
    "runc": "runc",
    "util-linux": "nsenter",
}
OF_CLIENTS = ("ca-certificates", "git", "python3-venv")
"""What .venv, kubectl and Helm need."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(names: Collection[str] = tuple(_NEEDED)) -> list[str]:
    """Return those of these packages whose program or file is not there."""
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    return [name for name in names if not _there(_NEEDED[name], path)]


def _there(needed: str, path: str) -> bool:
    if needed.startswith("/"):
        return any(Path("/").glob(needed[1:]))
    return shutil.which(needed, path=path) is not None


def install(home: Home, names: Collection[str] = tuple(_NEEDED)) -> None:
    """Install what is missing of these packages; with all of them promtool, without the server that Debian ships it with."""
    lacking = missing(names)
    promtool = None if len(names) < len(_NEEDED) else home.bin / "promtool"
    if not lacking and (promtool is None or promtool.exists()):
        say(f"packages: all {len(names)} are there")
        return
    if not shutil.which("apt-get"):
        raise ClusterError(f"this machine has no apt-get; install by other means: {', '.join(lacking)}")
    if lacking and os.geteuid():
        raise ClusterError(f"only root may install: sudo apt-get install {' '.join(lacking)}")
    with timed(f"packages: {', '.join(lacking) or 'promtool'}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        (home.logs / "packages.log").unlink(missing_ok=True)
        run_logged(home, "packages", "apt-get", "update", "-q", extra=quiet)
        if lacking:
            run_logged(
                home, "packages", "apt-get", "install", "-q", "-y", "--no-install-recommends", *lacking, extra=quiet
            )
        if still := missing(names):
            raise ClusterError(f"apt-get installed no {', '.join(still)}; see {home.logs / 'packages.log'}")
        if promtool is not None and not promtool.exists():
            _extract_promtool(home, promtool)


def _extract_promtool(home: Home, target: Path) -> None:
    """Take one program out of a package: installing it would start a server that nobody asked for."""
    with tempfile.TemporaryDirectory() as folder:
        run_logged(home, "packages", "apt-get", "download", "-q", "prometheus", cwd=Path(folder))
        (package,) = Path(folder).glob("prometheus_*.deb")
        run_logged(home, "packages", "dpkg-deb", "--extract", package, f"{folder}/x")
        shutil.copy2(f"{folder}/x/usr/bin/promtool", target)
    if not output_of(target, "--version"):
        target.unlink()
        raise ClusterError("promtool from Debian's prometheus package does not run here; the rule tests need it")
