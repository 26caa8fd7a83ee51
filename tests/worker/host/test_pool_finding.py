# SPDX-License-Identifier: Apache-2.0
"""Copies that are there are found without waiting for anything or anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.plain_bundles import packed_bytes


def test_a_copy_that_is_there_is_found_and_held(pool, bundle, read):
    store, one = pool(budget=8), bundle("a", 3)
    read(store.acquire(one, keep=False))
    read(store.acquire(one, keep=False))  # has seen the table as the fill left it
    found = store.find(one, keep=False)
    assert found is not None
    assert not store.evict(one)
    assert read(found) == packed_bytes(one)
    statistics = store.statistics()
    assert (statistics.hits, statistics.misses) == (2, 1)
    assert store.evict(one)
    assert store.find(one, keep=False) is None


def test_what_is_found_for_keeps_is_kept(pool, bundle, read):
    store, one = pool(budget=8), bundle("a", 3)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    read(store.find(one, keep=True))
    assert not store.evict(one)
    store.unkeep(one)
    assert store.evict(one)


def test_nobody_is_waited_for(pool, bundle, read):
    store, one = pool(budget=8), bundle("a", 3)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    directory, other = store._opened._directory, pool(budget=8)._opened._directory
    with directory.locked():  # a thread of this process
        assert store.find(one, keep=False) is None
    with other.locked():  # another worker: somebody else to the lock, in the same process too
        assert store.find(one, keep=False) is None
    with store._opened._segments._mapping:  # held while memory is page-locked for others, in steps with pauses
        found = store.find(one, keep=False)
    assert read(found) == packed_bytes(one)


def test_a_table_that_changed_is_read_by_those_who_may_wait(worker, pool, bundle, read):
    store, one, two = pool(budget=16), bundle("a", 3), bundle("b", 3)
    other = worker(budget=16)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    other.ask("acquire", two.path)
    assert store.find(one, keep=False) is None
    store.statistics()  # reads it
    assert read(store.find(one, keep=False)) == packed_bytes(one)


def test_segments_that_came_or_went_are_looked_after_first(pool, bundle, read):
    store, one, two = pool(budget=None, segment=4), bundle("a", 3), bundle("b", 3)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    read(store.find(one, keep=False))
    read(store.acquire(two, keep=False))  # takes a segment more
    assert store.find(two, keep=False) is None
    read(store.acquire(two, keep=False))
    assert read(store.find(one, keep=False)) == packed_bytes(one)
    assert read(store.find(two, keep=False)) == packed_bytes(two)


def test_segments_beyond_the_budget_are_given_back_first(pool, bundle, read):
    store = pool(budget=4, segment=4)
    one, kept = bundle("a", 3), bundle("kept", 3)
    read(store.acquire(one, keep=True))
    for _ in range(2):
        read(store.acquire(kept, keep=True))
    store.unkeep(one)
    assert store.find(kept, keep=True) is None
    assert len(list(store._path.glob("segment-*"))) == 2
    for _ in range(2):
        read(store.acquire(kept, keep=True))
    assert len(list(store._path.glob("segment-*"))) == 1
    read(store.find(kept, keep=True))


def test_nothing_is_found_where_there_is_no_pool_or_no_copy_is_wanted(pool, bundle, read):
    one, empty = bundle("a", 1), bundle("empty", 0)
    store = pool(budget=0)
    assert store.find(one, keep=False) is None
    for _ in range(2):
        read(store.acquire(one, keep=True))
    assert store.find(one, keep=False) is None
    assert store.find(empty, keep=False) is None


def test_a_lock_that_fails_is_closed_and_the_copy_stays_free(pool, bundle, read, monkeypatch):
    store, one = pool(budget=8), bundle("a", 3)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    files = len(list(Path("/proc/self/fd").iterdir()))

    def fails(entry, *, wanted):
        raise OSError("no more locks")

    with monkeypatch.context() as patched:
        patched.setattr(store._opened, "_keep", fails)
        with pytest.raises(OSError, match="no more locks"):
            store.find(one, keep=False)
    assert len(list(Path("/proc/self/fd").iterdir())) == files - 1  # that of an idle holder
    assert store.evict(one)
