# SPDX-License-Identifier: Apache-2.0
"""An API server alone comes and goes without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.apiserver import api_server
from e2e.cluster.commands import kubectl
from e2e.cluster.processes import Processes

pytestmark = pytest.mark.apiserver


def test_servers_run_side_by_side_and_leave_nothing() -> None:
    with api_server() as one, api_server(controllers=True) as two:
        assert one.url != two.url
        kubectl(one.settings, "run", "pod", "--image=none")
        kubectl(two.settings, "create", "deployment", "web", "--image=none")
        assert "default" in kubectl(two.settings, "get", "serviceaccounts", "-o", "name").stdout
        states = [one.settings.state, two.settings.state]
        processes = [Processes(each.settings) for each in (one, two)]
        pids = [each.running(name) for each in processes for name in each.names()]
        assert len(pids) == 5
        assert all(pids)
    assert not any(state.exists() for state in states)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
