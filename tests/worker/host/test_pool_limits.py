# SPDX-License-Identifier: Apache-2.0
"""A real memory limit and a real file system in memory that are full, at each stage: a refusal or a stream, never a kill."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.memory_group import MemoryGroup
from helpers.plain_bundles import packed_bytes

from ballast_contract.reasons import Reason
from ballast_worker.bundle.weights import WeightsFile
from ballast_worker.host import table_file
from ballast_worker.host.limits import Available

MIB = 1 << 20
TESTS = Path(__file__).parents[2]

# A real memory limit


@pytest.fixture
def group():
    """A memory control group."""
    try:
        made = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    yield made
    made.remove()


def run(stage, group, directory, bundles):
    """What a process under a limit found, and how it ended."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "worker_image")])}
    command = [sys.executable, "-m", "helpers.pool_limits", stage, str(group.path), str(directory)]
    return subprocess.run(
        group.join([*command, *(str(one.path) for one in bundles)]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def found_by(*arguments):
    result = run(*arguments)
    assert result.returncode == 0, f"{result.returncode}: {result.stderr}"
    return json.loads(result.stdout)


def right(bundles, loads):
    return [load["sha256"] for load in loads] == [hashlib.sha256(packed_bytes(one)).hexdigest() for one in bundles]


def test_at_the_start_as_many_segments_are_made_as_the_memory_limit_leaves(group, big_mount, bundle):
    """kubernetes/kubernetes#28272."""
    bundles = [bundle("a", 3), bundle("b", 30)]
    found = found_by("at_the_start", group, big_mount / "pool", bundles)
    assert 2 <= found["segments"] <= 4
    assert f"of 16 segments of 4 MiB: memory limit of the control group {group.path} leaves" in found["trouble"]
    assert [load["kept"] for load in found["loads"]] == [True, False]
    assert right(bundles, found["loads"])


def test_a_pool_without_a_budget_grows_to_the_memory_limit_and_then_evicts(group, big_mount, bundle):
    bundles = [bundle(f"m{index}", 3) for index in range(8)]
    found = found_by("while_it_grows", group, big_mount / "pool", bundles)
    assert 2 <= found["segments"] <= 4
    assert all(load["kept"] for load in found["loads"])
    assert right(bundles, found["loads"])


def test_what_the_process_took_meanwhile_is_counted_before_the_first_segment(group, big_mount, bundle):
    bundles = [bundle(f"m{index}", 6) for index in range(3)]
    found = found_by("before_the_first_load", group, big_mount / "pool", bundles)
    assert found["segments"] <= 1
    assert not any(load["kept"] for load in found["loads"])
    assert right(bundles, found["loads"])


def test_copies_that_are_always_kept_go_beyond_the_budget_and_not_beyond_the_memory_limit(group, big_mount, bundle):
    bundles = [bundle(f"m{index}", 3) for index in range(6)]
    found = found_by("for_copies_that_are_always_kept", group, big_mount / "pool", bundles)
    assert 2 <= found["segments"] <= 3
    assert [load["kept"] for load in found["loads"]] == [index < found["segments"] for index in range(6)]
    assert right(bundles, found["loads"])


def test_the_control_that_does_not_ask_is_killed(group, big_mount, bundle):
    assert run("without_asking", group, big_mount / "pool", [bundle("a", 3)]).returncode == -signal.SIGKILL


# A real file system in memory


def fill_up(folder):
    """Take all that is free there; answers the file."""
    file = folder / "full"
    status = os.statvfs(folder)
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, status.f_bavail * status.f_frsize)
    assert os.statvfs(folder).f_bavail == 0
    return file


@pytest.fixture
def blind(pool, small_mount):
    """Makes pools on the small mount that believe there is room: only the file system itself says no."""

    def make(budget):
        return pool(budget=budget, segment=4, directory=small_mount / "pool", limits=lambda _: Available(1 << 40, "x"))

    return make


def test_full_before_the_table_there_is_no_pool_until_there_is_room(blind, small_mount, bundle, read):
    full, one = fill_up(small_mount), bundle("a", 3)
    store = blind(8)
    trouble = store.trouble([])
    assert trouble.reason is Reason.SHM_FALLBACK
    assert "there is no room for a host pool at" in trouble.message
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    full.unlink()
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)
    assert store.has(one)
    assert store.trouble([one]) is None


def test_full_before_the_segments_everything_is_streamed_until_there_is_room(blind, small_mount, bundle, read):
    blind(0).acquire(bundle("first", 1), keep=True).close()
    full, one = fill_up(small_mount), bundle("a", 9)
    store = blind(48)
    assert "of 12 segments of 4 MiB" in store.trouble([]).message
    assert not store.acquire(one, keep=False).kept
    full.unlink()
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)
    assert store.has(one)


@pytest.mark.parametrize("budget", [None, 128])
def test_full_by_the_pool_itself_it_evicts_and_what_is_larger_is_streamed(blind, bundle, read, budget):
    store = blind(budget)
    for index in range(11):
        one = bundle(f"m{index}", 7)
        assert read(store.acquire(one, keep=False)) == packed_bytes(one)
        assert store.has(one)
    large = bundle("large", 65)
    transfer = store.acquire(large, keep=True)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(large)
    assert "no host copy of 'large' (65 MiB) is kept" in store.trouble([large]).message


def test_full_while_a_file_is_read_that_copy_is_made(blind, small_mount, bundle, read, monkeypatch):
    store, one = blind(8), bundle("a", 3)
    real = WeightsFile.read_into

    def read_into(*args, **options):
        fill_up(small_mount)
        real(*args, **options)

    monkeypatch.setattr(WeightsFile, "read_into", read_into)
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)
    assert store.has(one)


def test_full_when_the_table_must_grow_that_copy_is_not_made_and_the_others_stay(
    blind, small_mount, bundle, read, monkeypatch
):
    monkeypatch.setattr(table_file, "FIRST_COPY_BYTES", 512)
    store = blind(40)
    first = [bundle(f"m{index}", 1) for index in range(3)]
    for one in first:
        read(store.acquire(one, keep=False))
    full = fill_up(small_mount)
    grown = [bundle(f"{index:02d}" * 120, 1, seed=index) for index in range(14)]
    loads = [store.acquire(one, keep=False) for one in grown]
    assert [read(transfer) for transfer in loads] == [packed_bytes(one) for one in grown]
    assert not all(transfer.kept for transfer in loads)
    assert all(store.has(one) for one in first)
    full.unlink()
    read(store.acquire(grown[-1], keep=False))
    assert store.has(grown[-1])
