# SPDX-License-Identifier: Apache-2.0
"""The local cluster for tests: started when it does not run, and left running for the next test run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from e2e.cluster.kube import Kube  # noqa: E402 - the path comes first
from e2e.cluster.settings import Settings  # noqa: E402


def _tool(*argv: str) -> str:
    done = subprocess.run([str(REPOSITORY / argv[0]), *argv[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"{' '.join(argv)} failed:\n{done.stderr}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return done.stdout


@pytest.fixture(scope="session")
def image() -> str:
    """The worker's image, which has a Python for whatever a test's pods do."""
    return str(json.loads(_tool("e2e/bootstrap/bootstrap", "images", "--print"))["worker"])


@pytest.fixture(scope="session")
def cluster(image: str) -> Settings:
    """A cluster of two nodes, two GPUs on each."""
    _tool("e2e/cluster/cluster", "up", "--nodes", "2")
    _tool("e2e/cluster/cluster", "load")
    return Settings.from_environment()


@pytest.fixture(scope="module")
def kube(cluster: Settings) -> Iterator[Kube]:
    """A namespace for the tests of one file."""
    found = Kube(cluster, f"test-{uuid.uuid4().hex[:8]}")
    found.run("create", "namespace", found.namespace)
    found.run("label", "namespace", found.namespace, "pod-security.kubernetes.io/enforce=privileged")
    found.until("default ServiceAccount", lambda: found.get("serviceaccount", "default"), seconds=20)
    yield found
    found.run("delete", "namespace", found.namespace, "--wait=false")
