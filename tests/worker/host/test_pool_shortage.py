# SPDX-License-Identifier: Apache-2.0
"""Less memory than the budget says: fewer segments, then streams, and both are told."""

from __future__ import annotations

import os

from helpers.plain_bundles import packed_bytes

from ballast_worker.host import regions
from ballast_worker.host.limits import Available

MIB = 1 << 20


def test_a_budget_that_the_file_system_or_memory_limit_cannot_hold_gets_fewer_segments(pool, bundle, read):
    """At run time the pool falls back, and says why."""
    room = [10 * MIB]

    def limits(_):
        return Available(room[0], "memory limit of the control group /x")

    def take(path):
        found = limits(path)
        room[0] = max(0, room[0] - 4 * MIB)
        return found

    store = pool(budget=64, segment=4, limits=take)
    assert len(list(store._path.glob("segment-*"))) == 2
    assert "2 of 16 segments of 4 MiB" in store.trouble([]).message
    assert "control group /x leaves" in store.trouble([]).message
    room[0] = 0
    big = bundle("big", 9)
    transfer = store.acquire(big, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(big)
    small = bundle("small", 3)
    assert store.acquire(small, keep=False).kept


def test_segments_that_another_start_has_added_meanwhile_are_no_shortage(pool, monkeypatch):
    add = regions.add_segment

    def with_somebody_else(directory, *, most, room):
        add(directory, most=most, room=room)
        return add(directory, most=most, room=room)

    monkeypatch.setattr(regions, "add_segment", with_somebody_else)
    store = pool(budget=16, segment=4)
    assert len(list(store._path.glob("segment-*"))) == 4
    assert store.trouble([]) is None


def test_a_pool_that_was_short_at_its_start_grows_when_there_is_room(pool, bundle, read):
    room = [0]
    store = pool(budget=8, segment=4, limits=lambda _: Available(room[0], "x"))
    assert not store.acquire(bundle("a", 3), keep=False).kept
    room[0] = 1 << 30
    read(store.acquire(bundle("b", 3), keep=False))
    assert store.has(bundle("b", 3))


def test_trouble_passes_with_the_next_copy_that_is_kept_or_with_the_model(pool, bundle, read):
    room = [0]
    store = pool(budget=8, segment=4, limits=lambda _: Available(room[0], "x"))
    a, b = bundle("a", 3), bundle("b", 3)
    assert "0 of 2 segments" in store.trouble([a, b]).message
    for one in (a, b):
        read(store.acquire(one, keep=False))
        assert f"no host copy of '{one.manifest.name}'" in store.trouble([a, b]).message
    assert "no host copy of 'a'" in store.trouble([a]).message
    assert "0 of 2 segments" in store.trouble([]).message
    read(store.acquire(a, keep=False))
    room[0] = 1 << 30
    for one in (a, b, a):
        read(store.acquire(one, keep=False))
    assert store.trouble([a, b]) is None


def test_an_unlimited_pool_without_room_evicts_and_then_streams(pool, bundle, read):
    room = [1 << 30]
    store = pool(budget=None, segment=4, limits=lambda _: Available(room[0], "free space"))
    a, b, big = bundle("a", 3), bundle("b", 3), bundle("big", 5)
    read(store.acquire(a, keep=False))
    room[0] = 0
    read(store.acquire(b, keep=False))
    assert not store.has(a)
    assert not store.acquire(big, keep=True).kept
    assert store.has(b)


def test_a_full_file_system_is_a_fallback_and_no_error(pool, bundle, read, monkeypatch):
    store = pool(budget=None, segment=4)

    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    one = bundle("a", 3)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    assert list(store._path.glob("segment-*")) == []


def test_a_table_that_cannot_be_written_is_a_fallback_and_no_error(pool, bundle, read, monkeypatch):
    store, one = pool(budget=8), bundle("a", 3)
    real = os.pwrite

    def full(fd, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    monkeypatch.setattr(os, "pwrite", real)
    assert store.acquire(one, keep=False).kept
