# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment leaves nothing that the next start, or the next who needs the room, does not put right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def test_killed_at_any_system_call_the_pool_is_whole_at_the_next_start(bundle, small_mount):
    found = run("each_call", small_mount / "pool", 8 * MIB, [bundle("a", 2.5), bundle("b", 2.5), bundle("c", 0.5)])
    assert found["wrong"] == {}
    assert found["calls"] > 60
    assert found["killed"] > found["calls"] * 0.7


def test_killed_fifty_times_while_reading_it_never_leaks_and_always_starts(bundle, small_mount):
    """64 MiB of shared memory, models of 10 MiB. sgl-project/sglang#40723, vllm-project/vllm#51317,
    triton-inference-server/server#7481.
    """
    found = run("during_reads", small_mount / "pool", 32 * MIB, [bundle("a", 10), bundle("b", 10)])
    assert found["wrong"] == {}
    assert found["killed"] >= 20
    used = sum(path.stat().st_blocks * 512 for path in (small_mount / "pool").iterdir())
    assert used <= 33 * MIB
    assert os.statvfs(small_mount).f_bavail > 0


def test_a_hundred_kills_of_fillers_and_evictors_leave_no_orphan_page_and_the_next_load_is_a_hit(bundle, small_mount):
    bundles = [bundle(name, mib) for name, mib in (("a", 1), ("b", 3), ("c", 5), ("d", 2.5))]
    found = run("at_random", small_mount / "pool", 8 * MIB, bundles)
    assert found["wrong"] == {}
    assert found["left"]["filling"] > 5, "too few were killed while they filled"
