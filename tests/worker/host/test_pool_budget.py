# SPDX-License-Identifier: Apache-2.0
"""Budgets: nothing, a size, unlimited; and copies that are always kept."""

from __future__ import annotations

from helpers.plain_bundles import packed_bytes

from ballast_contract.reasons import Reason

MIB = 1 << 20


def counts(store):
    statistics = store.statistics()
    return statistics.hits, statistics.misses, statistics.fallbacks


def test_a_kept_copy_never_goes_until_it_is_let_go(pool, bundle, read):
    store = pool(budget=4, segment=4)
    kept, other, third = bundle("kept", 2), bundle("other", 2), bundle("third", 2)
    read(store.acquire(kept, keep=True))
    read(store.acquire(other, keep=False))
    read(store.acquire(third, keep=False))
    assert store.has(kept)
    assert not store.evict(kept)
    store.unkeep(kept)
    read(store.acquire(other, keep=False))
    assert not store.has(kept)


def test_a_copy_that_is_there_can_become_a_kept_one(pool, bundle, read):
    store, one = pool(budget=16), bundle("a", 2)
    read(store.acquire(one, keep=False))
    read(store.acquire(one, keep=True))
    assert not store.evict(one)


def test_kept_copies_may_exceed_the_budget_and_that_is_told_until_they_are_let_go(pool, bundle, read, caplog):
    store = pool(budget=4, segment=4)
    kept = [bundle(name, 3) for name in ("k1", "k2", "k3")]
    for one in kept:
        transfer = store.acquire(one, keep=True)
        assert transfer.kept
        assert read(transfer) == packed_bytes(one)
    assert "kept copies exceed the host budget of 4 MiB" in caplog.text
    assert store.statistics().cached == 12 * MIB
    assert store.statistics().excess == 8 * MIB
    trouble = store.trouble(kept)
    assert trouble.reason is Reason.HOST_BUDGET_EXCEEDED
    assert "8 MiB more than the budget of 4 MiB" in trouble.message
    for one in kept:
        store.unkeep(one)
    other = bundle("other", 3)
    read(store.acquire(other, keep=False))
    assert store.has(other)
    assert store.statistics().cached == 4 * MIB
    assert store.statistics().excess == 0
    assert store.trouble([*kept, other]) is None
    assert len(list(store._path.glob("segment-*"))) == 1


def test_ordinary_copies_take_nothing_of_what_is_beyond_the_budget(pool, bundle, read):
    store = pool(budget=8, segment=4)
    first, second, other = bundle("k1", 5), bundle("k2", 3), bundle("other", 1)
    held = store.acquire(first, keep=True)
    read(store.acquire(second, keep=True))
    assert store.statistics().excess == 4 * MIB
    assert store.statistics().nbytes.free == 2 * MIB
    store.unkeep(first)
    assert not store.acquire(other, keep=False).kept
    assert read(held) == packed_bytes(first)
    read(store.acquire(other, keep=False))
    assert [store.has(one) for one in (first, second, other)] == [False, True, True]
    assert store.statistics().excess == 0


def test_a_budget_of_zero_keeps_nothing_but_what_is_to_be_kept(pool, bundle, read):
    store = pool(budget=0)
    a, kept = bundle("a", 3), bundle("kept", 2)
    transfer = store.acquire(a, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(a)
    assert not store._path.exists()
    assert counts(store) == (0, 1, 0)
    assert read(store.acquire(kept, keep=True)) == packed_bytes(kept)
    assert store.has(kept)


def test_with_a_budget_of_zero_a_file_that_is_read_again_is_warned_of_once_for_each_model(pool, bundle, read, caplog):
    store = pool(budget=0)
    a, b = bundle("a", 3), bundle("b", 3)
    for one in (a, b):
        read(store.acquire(one, keep=False))
    assert caplog.records == []
    for one in (a, a, b, a):
        read(store.acquire(one, keep=False))
    assert [record.model for record in caplog.records] == ["a", "b"]
    assert "weights of 'a' (3 MiB) are read from the file again, because host.budget is 0" in caplog.text
    assert store.trouble([a, b]) is None


def test_a_file_that_is_read_again_because_its_copy_made_room_is_warned_of_once_for_each_model(
    pool, bundle, read, caplog
):
    store = pool(budget=4)
    a, b = bundle("a", 3), bundle("b", 3)
    for one in (a, a, b):
        read(store.acquire(one, keep=False))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    for one in (a, a, b, a, b):
        read(store.acquire(one, keep=False))
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.model for record in warned] == ["a", "b"]
    assert "weights of 'a' (3 MiB) are read from the file again, because their host copy is gone" in caplog.text
    assert "raise host.budget" in caplog.text
    assert store.trouble([a, b]) is None


def test_an_unlimited_budget_takes_segments_as_they_are_needed(pool, bundle, read):
    store = pool(budget=None, segment=4)
    assert store.statistics().budget is None
    for index in range(5):
        read(store.acquire(bundle(f"m{index}", 3), keep=False))
    assert all(store.has(bundle(f"m{index}", 3)) for index in range(5))
    assert len(list(store._path.glob("segment-*"))) == 5


def test_a_model_larger_than_a_segment_spans_several(pool, bundle, read):
    store, one = pool(budget=None, segment=4), bundle("a", 11)
    read(store.acquire(one, keep=False))
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)


def test_each_start_trims_to_the_budget_the_least_recently_used_first(pool, bundle, read):
    first = pool(budget=16, segment=4)
    names = [bundle(f"m{index}", 3) for index in range(4)]
    for one in names:
        read(first.acquire(one, keep=False))
    first.close()
    second = pool(budget=8, segment=4)
    assert sum(second.has(one) for one in names) == 2
    assert second.statistics().cached <= 8 * MIB
    assert len(list(second._path.glob("segment-*"))) == 2
    second.close()
    assert not any(pool(budget=0).has(one) for one in names)


def test_a_start_does_not_trim_what_another_worker_transfers_or_keeps(pool, bundle, read):
    first = pool(budget=12, segment=4)
    kept, held, idle = bundle("kept", 3), bundle("held", 3), bundle("idle", 3)
    read(first.acquire(kept, keep=True))
    transfer = first.acquire(held, keep=False)
    read(first.acquire(idle, keep=False))
    second = pool(budget=4, segment=4)
    assert [second.has(one) for one in (kept, held, idle)] == [True, True, False]
    assert read(transfer) == packed_bytes(held)
