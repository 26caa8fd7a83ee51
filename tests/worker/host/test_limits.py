# SPDX-License-Identifier: Apache-2.0
"""How much host memory may still be taken, on machines of every kind."""

from __future__ import annotations

import pytest

from ballast_worker.host.limits import MARGIN_BYTES, available

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """Makes a tree of /proc and /sys/fs/cgroup, and asks it."""

    def make(*, memory_available: int, groups: str, files: dict[str, str]):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
        (tmp_path / "proc/meminfo").write_text(f"MemTotal: 999999999 kB\nMemAvailable: {memory_available // 1024} kB\n")
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available(tmp_path, proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")

    return make


def test_version_2_inside_a_container_counts_its_own_limit(machine):
    found = machine(
        memory_available=1 << 50,
        groups="0::/\n",
        files={
            "memory.max": str(3 * GIB),
            "memory.current": str(1 * GIB),
            "memory.stat": "anon 1\ninactive_file 0\nactive_file 0\n",
        },
    )
    assert found.nbytes == 2 * GIB - MARGIN_BYTES
    assert "control group" in found.limit


def test_version_2_takes_the_tightest_limit_on_the_way_up(machine):
    found = machine(
        memory_available=1 << 50,
        groups="0::/pod/container\n",
        files={
            "memory.current": "1",
            "pod/memory.max": str(2 * GIB),
            "pod/memory.current": str(GIB),
            "pod/container/memory.max": str(9 * GIB),
            "pod/container/memory.current": "0",
        },
    )
    assert found.nbytes == GIB - MARGIN_BYTES


def test_file_cache_is_given_up_under_pressure_and_does_not_count(machine):
    found = machine(
        memory_available=1 << 50,
        groups="0::/\n",
        files={
            "memory.max": str(3 * GIB),
            "memory.current": str(3 * GIB),
            "memory.stat": f"shmem 5\ninactive_file {GIB}\nactive_file 7\n",
        },
    )
    assert found.nbytes == GIB + 7 - MARGIN_BYTES


def test_no_limit_leaves_what_the_node_has(machine):
    found = machine(
        memory_available=4 * GIB, groups="0::/\n", files={"memory.max": "max\n", "memory.current": str(GIB)}
    )
    assert found.nbytes == 4 * GIB - MARGIN_BYTES
    assert "node" in found.limit


def test_version_1_named_as_the_node_sees_it_is_found_at_the_root_of_the_mount(machine):
    found = machine(
        memory_available=1 << 50,
        groups="9:name=systemd:/x\n4:cpu,memory:/kubepods/pod1/container\n",
        files={
            "memory/memory.limit_in_bytes": str(2 * GIB),
            "memory/memory.usage_in_bytes": str(GIB),
            "memory/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert found.nbytes == GIB - MARGIN_BYTES


def test_version_1_without_a_limit_has_a_huge_number(machine):
    found = machine(
        memory_available=GIB,
        groups="4:memory:/\n",
        files={
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/memory.usage_in_bytes": "5",
        },
    )
    assert found.nbytes == GIB - MARGIN_BYTES


def test_over_the_limit_leaves_nothing_and_never_less(machine):
    found = machine(memory_available=1 << 50, groups="0::/\n", files={"memory.max": "1000", "memory.current": "2000"})
    assert found.nbytes == 0


def test_a_machine_that_tells_nothing_leaves_the_free_space(tmp_path):
    found = available(tmp_path, proc=tmp_path / "none", cgroups=tmp_path / "none")
    assert found.nbytes > 0
    assert "free space" in found.limit
