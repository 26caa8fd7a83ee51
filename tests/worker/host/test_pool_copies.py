# SPDX-License-Identifier: Apache-2.0
"""The host tier as a cache: what is kept, what goes, and what is streamed."""

from __future__ import annotations

from pathlib import Path

from helpers.plain_bundles import packed_bytes, random_bundle

MIB = 1 << 20


def counts(store):
    statistics = store.statistics()
    return statistics.hits, statistics.misses, statistics.fallbacks


def test_a_miss_fills_a_region_and_a_hit_reads_no_file(pool, bundle, read):
    store, one = pool(budget=16), bundle("a", 3)
    transfer = store.acquire(one, keep=False)
    assert transfer.kept
    assert read(transfer) == packed_bytes(one)
    (one.path / one.manifest.weights.file).rename(one.path / "aside")
    expected = (one.path / "aside").read_bytes()[-3 * MIB :]
    assert read(store.acquire(one, keep=False)) == expected
    assert counts(store) == (1, 1, 0)
    assert store.has(one)


def test_loads_that_find_their_copy_open_no_further_files(pool, bundle):
    store, one = pool(budget=16), bundle("a", 1)
    for overlapping in (1, 3, 3, 3):
        before = len(list(Path("/proc/self/fd").iterdir()))
        for transfer in [store.acquire(one, keep=False) for _ in range(overlapping)]:
            transfer.close()
            transfer.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert store.evict(one)


def test_progress_is_the_sum_of_bytes_read(pool, bundle, read):
    seen = []
    one = bundle("a", 6)
    read(pool(budget=16).acquire(one, keep=False, progress=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == 6 * MIB


def test_the_least_recently_loaded_copy_goes_first(pool, bundle, read):
    store = pool(budget=8)
    a, b, c, d, e = (bundle(name, 2) for name in "abcde")
    for one in (a, b, c, d, a):
        read(store.acquire(one, keep=False))
    read(store.acquire(e, keep=False))
    assert [store.has(one) for one in (a, b, c, d, e)] == [True, False, True, True, True]
    assert store.statistics().cached == 8 * MIB


def test_use_never_exceeds_the_budget(pool, bundle, read):
    store = pool(budget=12, segment=4)
    for index in range(20):
        read(store.acquire(bundle(f"m{index}", 1 + index % 5), keep=False))
        assert store.statistics().cached <= 12 * MIB
    assert sum(path.stat().st_size for path in store._path.glob("segment-*")) == 12 * MIB


def test_a_copy_in_transfer_does_not_go(pool, bundle, read):
    store = pool(budget=4, segment=4)
    a, b, c = bundle("a", 2), bundle("b", 2), bundle("c", 2)
    held = store.acquire(a, keep=False)
    read(store.acquire(b, keep=False))
    read(store.acquire(c, keep=False))
    assert store.has(a)
    assert not store.has(b)
    assert read(held) == packed_bytes(a)


def test_a_model_larger_than_what_may_go_is_streamed_and_nothing_goes_for_it(pool, bundle, read, caplog):
    store = pool(budget=8)
    a, big = bundle("a", 4), bundle("big", 9)
    read(store.acquire(a, keep=False))
    for _ in range(2):
        transfer = store.acquire(big, keep=False)
        assert not transfer.kept
        assert read(transfer) == packed_bytes(big)
    assert store.has(a)
    assert counts(store) == (0, 3, 2)
    message = store.trouble([a, big]).message
    assert "no host copy of 'big' (9 MiB) is kept: the budget of 8 MiB is taken" in message
    assert [record.getMessage() for record in caplog.records] == [message]


def test_scattered_free_pages_are_as_good_as_one_run(pool, bundle, read):
    store = pool(budget=16, segment=8)
    small = [bundle(f"s{i}", 2) for i in range(8)]
    for one in small:
        read(store.acquire(one, keep=False))
    for one in small[::2]:
        assert store.evict(one)
    large = bundle("large", 7)
    assert read(store.acquire(large, keep=False)) == packed_bytes(large)
    assert read(store.acquire(large, keep=False)) == packed_bytes(large)
    assert all(store.has(one) for one in small[1::2])


def test_models_with_the_same_weights_share_one_copy(pool, bundle, tmp_path, read):
    store = pool(budget=16)
    a = bundle("a", 2, seed=7)
    twin = random_bundle(tmp_path / "models" / "twin", 2 * MIB, seed=7, pieces=2, name="twin")
    read(store.acquire(a, keep=False))
    assert store.has(twin)
    read(store.acquire(twin, keep=False))
    assert counts(store) == (1, 1, 0)


def test_other_weights_shapes_names_or_types_are_other_copies(pool, bundle, tmp_path):
    store = pool(budget=16)
    one = bundle("a", 2, seed=7)
    store.acquire(one, keep=False).close()
    assert not store.has(random_bundle(tmp_path / "models" / "p", 2 * MIB, seed=7, pieces=4))
    assert not store.has(random_bundle(tmp_path / "models" / "s", 2 * MIB, seed=8, pieces=2))


def test_a_model_without_weights_needs_no_copy(pool, tmp_path, read):
    store = pool(budget=0)
    assert read(store.acquire(random_bundle(tmp_path / "empty", 0), keep=True)) == b""


def test_copies_survive_the_process(pool, bundle, read):
    one = bundle("a", 3)
    first = pool(budget=16)
    read(first.acquire(one, keep=False))
    first.close()
    second = pool(budget=16)
    assert second.has(one)
    assert read(second.acquire(one, keep=False)) == packed_bytes(one)
    assert counts(second) == (1, 0, 0)


def test_evict_drops_a_copy_unless_it_is_in_transfer(pool, bundle):
    store, one = pool(budget=16), bundle("a", 3)
    assert not store.evict(one)
    transfer = store.acquire(one, keep=False)
    assert not store.evict(one)
    transfer.close()
    transfer.close()
    assert store.evict(one)
    assert not store.has(one)


def test_a_segment_that_another_load_adds_meanwhile_stays_mapped(pool, bundle, read, monkeypatch):
    """Loads of different models run at the same time, and each begins with a look at what the pool has."""
    store = pool(budget=None, segment=4)
    first, second, third = (bundle(name, 3) for name in ("first", "second", "third"))
    read(store.acquire(first, keep=False))
    settle, meanwhile = store._opened.supply.settle, []

    def settle_while_another_loads(table):
        if not meanwhile:
            meanwhile.append(None)
            meanwhile[0] = store.acquire(third, keep=False)
        return settle(table)

    monkeypatch.setattr(store._opened.supply, "settle", settle_while_another_loads)
    assert read(store.acquire(second, keep=False)) == packed_bytes(second)
    assert read(meanwhile[0]) == packed_bytes(third)
