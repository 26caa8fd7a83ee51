# SPDX-License-Identifier: Apache-2.0
"""Workers of one node that share a pool: one copy, one budget, and nobody depends on anybody's life."""

from __future__ import annotations

import hashlib
import threading

from helpers.plain_bundles import packed_bytes

MIB = 1 << 20


def sha256(bundle):
    return hashlib.sha256(packed_bytes(bundle)).hexdigest()


def test_a_copy_that_one_worker_filled_is_a_hit_for_the_other(worker, pool, bundle):
    other, one = worker(budget=16), bundle("a", 3)
    assert other.ask("acquire", one.path) == {"kept": True, "sha256": sha256(one), "hits": 0}
    store = pool(budget=16, segment=4)
    assert store.has(one)
    (one.path / one.manifest.weights.file).unlink()
    transfer = store.acquire(one, keep=False)
    assert transfer.kept
    transfer.close()
    assert store.statistics().hits == 1


def test_the_budget_is_one_for_all(worker, pool, bundle, read):
    other = worker(budget=8)
    store = pool(budget=8, segment=4)
    bundles = [bundle(f"m{index}", 3) for index in range(4)]
    for index, one in enumerate(bundles):
        if index % 2:
            read(store.acquire(one, keep=False))
        else:
            other.ask("acquire", one.path)
            other.ask("close", one.path)
    assert store.statistics().cached == 8 * MIB
    assert [store.has(one) for one in bundles] == [False, False, True, True]
    assert len(list(store._path.glob("segment-*"))) == 2


def test_what_another_worker_transfers_or_keeps_does_not_go(worker, pool, bundle, read):
    other = worker(budget=12)
    held, kept, third, fourth = (bundle(name, 3) for name in ("held", "kept", "third", "fourth"))
    other.ask("acquire", held.path)
    other.ask("acquire", kept.path, "keep")
    other.ask("close", kept.path)
    store = pool(budget=12, segment=4)
    read(store.acquire(third, keep=False))
    read(store.acquire(fourth, keep=False))
    assert [store.has(one) for one in (held, kept, third, fourth)] == [True, True, False, True]
    assert not store.evict(held)
    assert not store.evict(kept)
    other.ask("close", held.path)
    assert store.evict(held)


def test_a_killed_worker_holds_and_keeps_nothing(worker, pool, bundle):
    other = worker(budget=12)
    held, kept = bundle("held", 3), bundle("kept", 3)
    other.ask("acquire", held.path)
    other.ask("acquire", kept.path, "keep")
    store = pool(budget=12, segment=4)
    assert store.has(held)
    other.kill()
    assert store.evict(held)
    assert store.evict(kept)


def test_while_one_worker_reads_a_model_the_other_waits_and_sees_its_progress(worker, pool, bundle, read):
    other, one = worker(budget=16), bundle("a", 3)
    other.tell("stop_in_fill", one.path, 2 * MIB)
    assert other.answer() == "filling"
    store, seen = pool(budget=16, segment=4), []
    assert not store.has(one)

    def progress(done):
        seen.append(done)
        if len(seen) == 1:
            other.tell()

    assert read(store.acquire(one, keep=False, progress=progress)) == packed_bytes(one)
    assert seen[0] == 2 * MIB
    assert other.answer() == "filled"
    assert store.statistics().hits == 1


def test_when_the_one_who_reads_is_killed_the_one_who_waits_reads_itself(worker, pool, bundle, read):
    other, one = worker(budget=16), bundle("a", 3)
    other.tell("stop_in_fill", one.path, 2 * MIB)
    assert other.answer() == "filling"
    store, killed = pool(budget=16, segment=4), threading.Event()

    def progress(done):
        if not killed.is_set():
            killed.set()
            other.kill()

    assert read(store.acquire(one, keep=False, progress=progress)) == packed_bytes(one)
    assert killed.is_set()
    assert store.statistics().misses == 1
    assert store.statistics().cached == 4 * MIB


def test_a_segment_added_by_one_worker_is_mapped_by_the_other_when_it_is_needed(worker, pool, bundle, read):
    store = pool(budget=None, segment=4)
    other, one = worker(budget=None), bundle("a", 7)
    other.ask("acquire", one.path)
    assert not store._opened._segments._mappings
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)
    assert len(store._opened._segments._mappings) == 2


def test_two_workers_that_start_together_make_the_segments_of_one_budget(worker, tmp_path):
    both = [worker(budget=32, wait=False) for _ in range(2)]
    assert [one.answer() for one in both] == ["ready", "ready"]
    assert len(list((tmp_path / "pool").glob("segment-*"))) == 8
