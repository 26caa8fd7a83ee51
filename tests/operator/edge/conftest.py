# SPDX-License-Identifier: Apache-2.0
"""A real API server with both CRDs for all scenarios of a process, and a namespace with an operator for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from helpers.api_server import REPOSITORY, Kubectl, kubectl_on_new_server
from helpers.operator_rig import OPERATOR_USER, Rig, operator_kubeconfig, rig


@pytest.fixture(scope="session")
def server() -> Iterator[Kubectl]:
    """An API server without controllers: nothing but the operator and the test changes anything."""
    with kubectl_on_new_server(audited=OPERATOR_USER) as kubectl:
        kubectl.succeed("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        kubectl.succeed("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield kubectl


@pytest.fixture(scope="session")
def operator_config(server: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Credentials with the rights of cluster/permissions.py and no more."""
    return asyncio.run(operator_kubeconfig(server.kubeconfig, tmp_path_factory.mktemp("kubeconfig")))


@pytest.fixture
async def pool(server: Kubectl, operator_config: Path) -> AsyncIterator[Rig]:
    """A namespace with a running operator."""
    async with rig(server.kubeconfig, operator_config) as found:
        found.start_operator()
        yield found


@pytest.fixture
async def bare(server: Kubectl, operator_config: Path) -> AsyncIterator[Rig]:
    """A namespace without an operator yet."""
    async with rig(server.kubeconfig, operator_config) as found:
        yield found
