# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the operator runs: a small pool, all the way, with figures that make sense."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.apiserver

SMALL = ["--models", "20", "--workers", "2", "--moves", "5", "--idle-seconds", "1", "--quiet-seconds", "1"]


def test_a_small_pool_is_placed_and_a_restart_writes_nothing() -> None:
    argv = [sys.executable, "-m", "benchmarks.operator", *SMALL]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["writes"]["create services"] == 20
    assert "apply inferencemodels" not in figures["restart_written"]
    assert figures["restart_model_events"] == 0
    assert set(figures["placing_cpu_seconds"]) == {
        "benchmark",
        "etcd",
        "kube-apiserver",
        "operator",
        "simulated workers",
    }
