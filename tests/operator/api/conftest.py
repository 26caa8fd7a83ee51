# SPDX-License-Identifier: Apache-2.0
"""A real API server with both CRDs, for the tests marked apiserver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY))

from e2e.cluster.apiserver import api_server  # noqa: E402 - the path comes first
from e2e.cluster.console import ClusterError  # noqa: E402


@dataclass(frozen=True)
class Kubectl:
    """kubectl against one API server."""

    program: Path
    kubeconfig: Path

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


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """kubectl with the CRDs of `crds/` installed and served."""
    try:
        with api_server() as server:
            tool = Kubectl(server.kubectl, server.kubeconfig)
            tool.succeed("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
            tool.succeed("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
            yield tool
    except ClusterError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def samples() -> list[str]:
    """The sample manifests as text."""
    return [path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "e2e" / "samples").glob("*.yaml"))]
