# SPDX-License-Identifier: Apache-2.0
"""A real API server with both CRDs, for the tests marked apiserver."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from helpers.api_server import REPOSITORY, Kubectl, kubectl_on_new_server


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """kubectl with the CRDs of `crds/` installed and served."""
    with kubectl_on_new_server() as tool:
        tool.succeed("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        tool.succeed("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        deadline = time.monotonic() + 30
        for kind in ("inferencemodel", "weightbudget"):  # served before they are published
            while tool.run("explain", kind).returncode:
                assert time.monotonic() < deadline, f"{kind} is not published"
                time.sleep(0.2)
        yield tool


@pytest.fixture
def samples() -> list[str]:
    """The sample manifests as text."""
    return [path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "e2e" / "samples").glob("*.yaml"))]
