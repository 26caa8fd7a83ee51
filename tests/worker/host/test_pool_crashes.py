# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment leaves nothing that the next start does not put right."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
TESTS = Path(__file__).parents[2]


def run(mode, directory, budget, bundles):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "worker_image")])}
    result = subprocess.run(
        [sys.executable, "-m", "helpers.pool_crashes", mode, directory, str(budget), *(one.path for one in bundles)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def small_mount(tmp_path):
    """A tmpfs of 64 MiB where the test may mount one, else a folder."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0755", "none", folder], check=False, capture_output=True
        ).returncode
        == 0
    )
    yield folder
    if mounted:
        subprocess.run(["umount", folder], check=True)


def test_killed_at_any_system_call_the_pool_is_whole_at_the_next_start(bundle, small_mount):
    found = run("each_call", small_mount / "pool", 8 * MIB, [bundle("a", 2.5), bundle("b", 2.5), bundle("c", 0.5)])
    assert found["wrong"] == {}
    assert found["calls"] > 60
    assert found["killed"] > found["calls"] * 0.7


def test_killed_fifty_times_while_reading_it_never_leaks_and_always_starts(bundle, small_mount):
    """B15: 64 MiB of shared memory, models of 10 MiB."""
    found = run("during_reads", small_mount / "pool", 32 * MIB, [bundle("a", 10), bundle("b", 10)])
    assert found["wrong"] == {}
    assert found["killed"] >= 20
    used = sum(path.stat().st_blocks * 512 for path in (small_mount / "pool").iterdir())
    assert used <= 33 * MIB
    with contextlib.suppress(OSError):
        status = os.statvfs(small_mount)
        assert status.f_bavail > 0
