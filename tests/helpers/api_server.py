# SPDX-License-Identifier: Apache-2.0
"""kubectl on a real API server that lives as long as a block, for the tests marked apiserver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from e2e.cluster.apiserver import ApiServer, api_server  # noqa: E402 - the path comes first
from e2e.cluster.console import ClusterError  # noqa: E402


@dataclass(frozen=True)
class Kubectl:
    """kubectl against one API server."""

    program: Path
    kubeconfig: Path
    audit: Path
    server: ApiServer

    def run(self, *arguments, manifest=None):
        """The finished process; a manifest is given as YAML on standard input."""
        text = yaml.safe_dump(manifest) if manifest is not None else None
        command = [self.program, "--kubeconfig", self.kubeconfig, *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def succeed(self, *arguments, manifest=None) -> str:
        """What it prints; it must succeed."""
        done = self.run(*arguments, manifest=manifest)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def fail(self, *arguments, manifest=None) -> str:
        """Its complaint; it must fail."""
        done = self.run(*arguments, manifest=manifest)
        assert done.returncode != 0, done.stdout
        return str(done.stderr)


@contextmanager
def kubectl_on_new_server(*, controllers: bool = False, audited: str = "") -> Iterator[Kubectl]:
    """An empty API server; the test is skipped, or under CI=true fails, where its programs are not installed."""
    try:
        with api_server(controllers=controllers, audited=audited) as server:
            yield Kubectl(server.kubectl, server.kubeconfig, server.audit, server)
    except ClusterError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
