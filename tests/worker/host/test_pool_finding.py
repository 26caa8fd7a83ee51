# SPDX-License-Identifier: Apache-2.0
"""Copies that are there are found without waiting for anything or anybody."""

from __future__ import annotations

from helpers.plain_bundles import packed_bytes

MIB = 1 << 20


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
    read(store.find(one, keep=False))


def test_a_table_that_changed_is_read_by_those_who_may_wait(worker, pool, bundle, read):
    store, one, two = pool(budget=16), bundle("a", 3), bundle("b", 3)
    other = worker(budget=16)
    for _ in range(2):
        read(store.acquire(one, keep=False))
    other.ask("acquire", two.path)
    assert store.find(one, keep=False) is None
    read(store.acquire(one, keep=False))
    assert read(store.find(one, keep=False)) == packed_bytes(one)
    read(store.find(two, keep=False))


def test_segments_beyond_the_budget_are_given_back_first(pool, bundle, read):
    store = pool(budget=4, segment=4)
    kept, one = bundle("kept", 3), bundle("a", 3)
    read(store.acquire(one, keep=True))
    read(store.acquire(kept, keep=True))
    store.unkeep(one)
    assert store.find(kept, keep=True) is None
    read(store.acquire(kept, keep=True))
    assert len(list(store._path.glob("segment-*"))) == 1


def test_nothing_is_found_without_a_pool_or_where_copies_are_not_wanted(pool, bundle, read):
    one, empty = bundle("a", 1), bundle("empty", 0)
    store = pool(budget=0)
    assert store.find(one, keep=False) is None
    for _ in range(2):
        read(store.acquire(one, keep=True))
    assert store.find(one, keep=False) is None
    assert pool(budget=8).find(empty, keep=False) is None
