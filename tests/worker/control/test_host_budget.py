# SPDX-License-Identifier: Apache-2.0
"""What a host budget resolves to, and what is found on the machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ballast_contract.config import Host, WorkerConfig
from ballast_contract.plan_lines import CONTEXT
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.control import preview
from ballast_worker.control.hostbudget import PROCESS_BYTES, HostFacts, describe, most, resolve
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.machine import Machine
from ballast_worker.control.planner import Planner
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.device.probe import DeviceFacts

MI = 1 << 20
FACTS = HostFacts(Path("/dev/shm"), 64 * MI, 64 * MI, None, PROCESS_BYTES + 1024 * MI)


def host(**fields):
    return Host.model_validate({"segment_bytes": "4m", **fields})


@pytest.mark.parametrize(
    ("config", "useful", "budget"),
    [
        (host(budget="unlimited"), None, None),
        (host(budget="48m"), None, 48 * MI),
        (host(budget="48m", workers=2), None, 24 * MI),
        (host(budget="48m", workers=2, sharing="node"), None, 48 * MI),
        (host(budget="0"), None, 0),
        (host(budget="auto"), None, 64 * MI),
        (host(budget="auto", workers=3), None, 20 * MI),
        (host(budget="auto"), 5 * MI, 8 * MI),
        (host(budget="auto"), 0, 0),
    ],
)
def test_what_a_budget_means(config, useful, budget):
    assert resolve(config, FACTS, process=0, useful=useful, workers=config.workers) == budget


def test_an_automatic_budget_takes_nothing_of_a_disk():
    assert resolve(host(), replace(FACTS, in_memory=False), process=0, useful=None, workers=1) == 0
    assert resolve(host(budget="8m"), replace(FACTS, in_memory=False), process=0, useful=None, workers=1) == 8 * MI


def test_an_automatic_budget_leaves_the_process_its_memory():
    assert (
        resolve(host(), replace(FACTS, free=PROCESS_BYTES + 30 * MI), process=10 * MI, useful=None, workers=1)
        == 20 * MI
    )
    assert resolve(host(), replace(FACTS, free=MI), process=0, useful=None, workers=1) == 0


def machine(root, limit, used, *, cache=0):
    """A tree of /proc and /sys/fs/cgroup, as `describe` wants it."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "proc/self/mounts").write_text(f"x / ext4 rw 0 0\ny {root} tmpfs rw 0 0\n")
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {8 * MI // 1024} kB\n")
    (root / "cgroup").mkdir(parents=True)
    (root / "cgroup/memory.max").write_text(f"{limit}\n")
    (root / "cgroup/memory.current").write_text(f"{used}\n")
    (root / "cgroup/memory.stat").write_text(f"inactive_file 0\nactive_file {cache}\n")
    return {"proc": root / "proc", "cgroups": root / "cgroup"}


def test_the_limit_of_a_container_is_read(tmp_path):
    facts = describe(tmp_path / "pool", **machine(tmp_path, 6 * MI, 2 * MI))
    assert (facts.limit, facts.free) == (6 * MI, 4 * MI)


def test_file_cache_of_a_container_is_given_up_for_copies(tmp_path):
    facts = describe(tmp_path / "pool", **machine(tmp_path, 6 * MI, 6 * MI, cache=5 * MI))
    assert (facts.limit, facts.free) == (6 * MI, 5 * MI)


@pytest.mark.parametrize(("kind", "in_memory"), [("tmpfs", True), ("ext4", False), ("overlay", False)])
def test_only_some_file_systems_are_memory(tmp_path, kind, in_memory):
    tree = machine(tmp_path, "max", 0)
    mount = next(path for path in (tmp_path, *tmp_path.parents) if path.is_mount())
    (tree["proc"] / "self/mounts").write_text(f"x {mount} {kind} rw 0 0\n")
    assert describe(tmp_path / "pool", **tree).in_memory is in_memory


@pytest.mark.parametrize("unlimited", ["max", 1 << 63])
def test_without_a_limit_the_machine_counts(tmp_path, unlimited):
    facts = describe(tmp_path / "pool", **machine(tmp_path, unlimited, 0))
    assert (facts.limit, facts.free, facts.node) == (None, 8 * MI, 99 << 10)


def test_what_the_pool_holds_already_is_not_counted_against_the_machine(tmp_path):
    """Of workers that share a pool the later ones must not take the earlier ones' copies for memory that is gone."""
    tree = machine(tmp_path, "max", 0)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "segment").write_bytes(b"x" * MI)
    assert describe(tmp_path / "pool", **tree).free >= 9 * MI


def test_what_the_pool_holds_already_is_not_counted_against_it(tmp_path, monkeypatch):
    """A restarted worker finds its own copies in the mount, and plans with their room."""
    status = os.statvfs(tmp_path)
    monkeypatch.setattr("os.statvfs", lambda _: status)
    (tmp_path / "pool").mkdir()
    before = describe(tmp_path / "pool")
    (tmp_path / "pool" / "segment").write_bytes(b"x" * MI)
    assert describe(tmp_path / "pool").mount_free - before.mount_free >= MI


def test_a_file_that_another_worker_removes_meanwhile_is_not_there(tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "segment").symlink_to(tmp_path / "gone")
    assert describe(tmp_path / "pool").mount_total > 0


@pytest.mark.parametrize(
    ("facts", "nbytes"),
    [
        (replace(FACTS, limit=8 * MI, free=4 * MI, mount_free=MI), 64 * MI),
        (replace(FACTS, limit=8 * MI, node=50 * MI), 48 * MI),
    ],
)
def test_a_shared_pool_without_a_budget_comes_to_what_the_node_can_hold_whatever_this_worker_may_take(facts, nbytes):
    assert most(host(budget="unlimited", sharing="node"), facts, useful=5 * MI) == nbytes


@pytest.mark.parametrize(
    ("facts", "useful", "nbytes"),
    [
        (FACTS, None, 64 * MI),
        (replace(FACTS, mount_free=MI, free=MI, limit=50 * MI), None, 48 * MI),
        (replace(FACTS, free=50 * MI), None, 48 * MI),
        (FACTS, 5 * MI, 8 * MI),
        (replace(FACTS, free=-MI), None, 0),
    ],
)
def test_a_pool_without_a_budget_comes_to_what_mount_and_memory_limit_allow_or_its_models_need(facts, useful, nbytes):
    assert most(host(budget="unlimited"), facts, useful=useful) == nbytes


def planned_at_start(config, machine):
    planner = Planner(config, machine)
    lineup = Lineup(
        config=config,
        workshop=Workshop(config, LocalBuilder(ExecutableStore(config.executable_store), parallelism=1)),
        quarantine=Quarantine(config.state_directory),
        limits=planner.limits,
        post=lambda action: action(),
        changed=lambda *_: None,
    )
    try:
        return planner.consider(lineup, 0.0).plan
    finally:
        lineup.close()


def previewed(config, machine):
    return preview.plan(config, machine, say=lambda _: None).plan


@pytest.mark.parametrize("plan", [planned_at_start, previewed])
def test_page_locked_memory_is_planned_for_without_a_host_budget_too(plan, tmp_path):
    facts = DeviceFacts(kind="cuda", name="a card", total_bytes=80 << 30, free_bytes=79 << 30)

    def context(budget: str) -> int:
        config = WorkerConfig.model_validate(
            {
                "managed": True,
                "backend": "cuda",
                "device": {"budget": "60g"},
                "state_directory": str(tmp_path),
                "executable_store": str(tmp_path / "store"),
                "host": {"budget": budget, "directory": str(tmp_path / "pool"), "segmentBytes": "2m"},
            }
        )
        machine = Machine(config, describe=lambda *_: facts, usage=lambda _: None, beside=lambda _: 0)
        return plan(config, machine).line(CONTEXT)

    assert context("64m") == context("0") + 64 * MI // 512
    assert context("unlimited") > context("0")


@pytest.mark.parametrize(("told", "configured", "share"), [(4, 1, 16), (0, 2, 32), (0, 1, 64)])
def test_workers_of_a_node_divide_what_they_do_not_share_as_the_operator_says_or_the_configuration(
    told, configured, share, tmp_path
):
    section = {"budget": "64m", "workers": configured, "directory": str(tmp_path), "segmentBytes": "2m"}
    config = WorkerConfig.model_validate({"managed": bool(told), "host": section})
    assert Machine(config).host_plan(0, None, workers=told).budget == share * MI
