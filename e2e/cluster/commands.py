# SPDX-License-Identifier: Apache-2.0
"""Running the machine's programs and writing files, in the few ways that the cluster does it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from e2e.cluster.console import ClusterError
from e2e.cluster.settings import SYSTEM_PATH, Settings


def environment(settings: Settings) -> dict[str, str]:
    """A short environment: a proxy variable of the calling shell would otherwise catch the cluster's own traffic."""
    return {
        "PATH": f"{settings.bin}:{SYSTEM_PATH}",
        "HOME": str(settings.state),  # kubectl keeps a cache there
        "KUBECONFIG": str(settings.admin),
        "LANG": "C.UTF-8",
    }


def run(
    settings: Settings, *argv: object, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with text as its input; check makes a failure an error that shows its output."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, text=True, capture_output=True, check=False, env=environment(settings), input=text)
    if check and done.returncode:
        raise ClusterError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
    return done


def kubectl(
    settings: Settings, *argv: object, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run kubectl as the administrator of the cluster."""
    return run(settings, settings.bin / "kubectl", *argv, check=check, text=text)


def put(path: Path, text: str, *, mode: int = 0o644) -> bool:
    """Write a file only when it differs, since kube-proxy ends itself when its configuration is written again."""
    if path.exists() and path.read_text() == text:
        return False
    path.touch(mode)
    path.write_text(text)
    return True


def need_root() -> None:
    """Refuse anyone but root, who alone may make namespaces and interfaces."""
    if os.geteuid():
        raise ClusterError(f"this must run as root, and runs as user {os.geteuid()}: use sudo")
