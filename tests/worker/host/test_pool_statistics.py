# SPDX-License-Identifier: Apache-2.0
"""What a pool says of itself is what was observed in it."""

from __future__ import annotations

from dataclasses import astuple

MIB = 1 << 20


def states(store):
    return [nbytes // MIB for nbytes in astuple(store.statistics().nbytes)]


def test_bytes_by_state_follow_a_copy_and_sum_to_the_segments(worker, pool, bundle):
    store, other = pool(budget=16, segment=4), worker(budget=16)
    a, b = bundle("a", 3), bundle("b", 5)
    assert states(store) == [0, 0, 0, 16]
    other.tell("stop_in_fill", a.path, 1)
    assert other.answer() == "filling"
    assert states(store) == [0, 4, 0, 12]
    other.tell()
    assert other.answer() == "filled"
    assert states(store) == [4, 0, 0, 12]
    transfer = store.acquire(b, keep=False)
    other.ask("acquire", a.path)
    assert states(store) == [0, 0, 10, 6]
    transfer.close()
    other.ask("close", a.path)
    assert states(store) == [10, 0, 0, 6]
    store.evict(a)
    assert states(store) == [6, 0, 0, 10]


def test_loads_are_hits_or_misses_and_misses_are_fills_or_streams(pool, bundle, read):
    store = pool(budget=4, segment=4)
    for one in (bundle("a", 3), bundle("a", 3), bundle("b", 3), bundle("large", 5)):
        read(store.acquire(one, keep=False))
    found = store.statistics()
    assert (found.hits, found.misses, found.fills, found.fallbacks) == (1, 3, 2, 1)


def test_a_start_counts_what_the_killed_had_left(worker, pool, bundle):
    other = worker(budget=8)
    other.tell("stop_in_fill", bundle("a", 3).path, 1)
    assert other.answer() == "filling"
    other.kill()
    first = pool(budget=8, segment=4)
    assert (first.statistics().swept_regions, first.statistics().swept_bytes) == (1, 4 * MIB)
    first.close()
    (first._path / "segment-000099").write_bytes(bytes(4 * MIB))
    second = pool(budget=8, segment=4)
    assert (second.statistics().swept_regions, second.statistics().swept_bytes) == (0, 4 * MIB)
    assert not (first._path / "segment-000099").exists()
    second.close()
    third = pool(budget=8, segment=4)
    assert (third.statistics().swept_regions, third.statistics().swept_bytes) == (0, 0)


def test_who_needs_the_room_of_the_killed_takes_it_without_a_new_start(worker, pool, bundle, read):
    store, other = pool(budget=4, segment=4), worker(budget=4)
    other.tell("stop_in_fill", bundle("a", 3).path, 1)
    assert other.answer() == "filling"
    other.kill()
    one = bundle("b", 3)
    read(store.acquire(one, keep=False))
    assert store.has(one)
    assert store.statistics().swept_regions == 1
