# SPDX-License-Identifier: Apache-2.0
"""How the API server is reached, as the environment and a kubeconfig say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ballast_operator.cluster.access import Access

SERVER = "https://api.example:6443"


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch) -> Path:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "there",
                "contexts": [{"name": "there", "context": {"cluster": "there", "user": "me"}}],
                "clusters": [{"name": "there", "cluster": {"server": SERVER}}],
                "users": [{"name": "me", "user": {"token": "secret"}}],
            }
        )
    )
    return path


async def test_no_call_looks_into_the_environment(kubeconfig):
    access = await Access.load(kubeconfig)
    assert access.configuration.client_session_kwargs == {"trust_env": False}
    assert access.configuration.proxy is None


async def test_a_proxy_of_the_environment_is_used(kubeconfig, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert (await Access.load(kubeconfig)).configuration.proxy == "http://proxy.example:3128"


async def test_a_server_that_the_environment_excepts_is_reached_without_the_proxy(kubeconfig, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", ".example")
    assert (await Access.load(kubeconfig)).configuration.proxy is None
