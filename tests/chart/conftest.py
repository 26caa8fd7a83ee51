# SPDX-License-Identifier: Apache-2.0
"""Helm and promtool for the chart's tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "ballast"
TOOLS = Path(os.environ.get("BALLAST_CLUSTER_HOME") or Path.home() / ".cache" / "ballast") / "bin"
KUBERNETES = "1.33.0"


def tool(name: str) -> str:
    """A program of the test cluster's tools, or of the machine."""
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed: run e2e/bootstrap/bootstrap binaries")
    return found


@dataclass(frozen=True)
class Helm:
    """Helm with this repository's chart."""

    program: str

    def run(self, *arguments, values=None, release="ballast"):
        """`helm template` as a finished process; values are given as a file on standard input."""
        command = [self.program, "template", release, str(CHART), "-n", "ballast-system", "--kube-version", KUBERNETES]
        text = yaml.safe_dump(values or {})
        return subprocess.run(
            [*command, "--values", "-", *arguments], input=text, capture_output=True, text=True, check=False
        )

    def render(self, *arguments, values=None, release="ballast"):
        """The rendered objects."""
        done = self.run(*arguments, values=values, release=release)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def refuse(self, *arguments, values=None):
        """What Helm says when it renders nothing."""
        done = self.run(*arguments, values=values)
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(tool("helm"))


@pytest.fixture(scope="session")
def promtool() -> str:
    return tool("promtool")


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART
