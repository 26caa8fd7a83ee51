# SPDX-License-Identifier: Apache-2.0
"""Of many who want a model one reads it; the others wait for as long as it gets on."""

from __future__ import annotations

import contextlib
import hashlib
import threading

import pytest
from helpers.plain_bundles import packed_bytes

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.weights import WeightsFile

MIB = 1 << 20


def counts(store):
    statistics = store.statistics()
    return statistics.hits, statistics.misses, statistics.fallbacks


def test_of_many_who_want_a_model_one_reads_it_and_the_others_see_its_progress(pool, bundle, read, monkeypatch):
    """The same model is read once."""
    store, one = pool(budget=32), bundle("a", 8)
    waiting = threading.Event()
    reads = []
    real = WeightsFile.read_into

    def slow(self, buffer, **options):
        reads.append(1)
        report = options["progress"]
        report(5 * MIB)
        assert waiting.wait(10), "nobody waits"
        report(-5 * MIB)
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", slow)
    results = []

    def want(progress=None):
        results.append(read(store.acquire(one, keep=False, progress=progress)))

    filler = threading.Thread(target=want)
    filler.start()
    while not reads:
        pass
    seen = []

    def progress(done):
        seen.append(done)
        waiting.set()

    others = [threading.Thread(target=want, args=(progress,)) for _ in range(2)]
    for other in others:
        other.start()
    for thread in (filler, *others):
        thread.join(20)
    assert len(reads) == 1
    assert results == [packed_bytes(one)] * 3
    assert 5 * MIB in seen
    assert counts(store) == (2, 1, 0)


def test_eight_processes_that_want_one_model_at_once_read_it_once(worker, bundle):
    one = bundle("a", 24)
    workers = [worker(budget=32, wait=False) for _ in range(8)]
    for other in workers:
        assert other.answer() == "ready"
        other.tell("load_when_told", one.path)
        assert other.answer() == "waiting"
    for other in workers:
        other.tell()
    found = [other.answer() for other in workers]
    assert {(answer["kept"], answer["sha256"]) for answer in found} == {
        (True, hashlib.sha256(packed_bytes(one)).hexdigest())
    }
    assert sum(answer["hits"] for answer in found) == 7
    assert sum(other.ask("reads", one.path) for other in workers) == 1


def test_a_fill_that_fails_is_taken_over_by_one_who_waited(pool, bundle, read, monkeypatch):
    store, one = pool(budget=32), bundle("a", 8)
    waiting, reads, failures, results = threading.Event(), [], [], []
    real = WeightsFile.read_into

    def flaky(self, buffer, **options):
        reads.append(1)
        if len(reads) == 1:
            waiting.wait(10)
            raise BundleError("SourceChanged", "for once")
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", flaky)

    def first():
        try:
            store.acquire(one, keep=False)
        except BundleError as error:
            failures.append(error)

    filler = threading.Thread(target=first)
    filler.start()
    while not reads:
        pass
    other = threading.Thread(
        target=lambda: results.append(read(store.acquire(one, keep=False, progress=lambda _: waiting.set())))
    )
    other.start()
    filler.join(20)
    other.join(20)
    assert len(failures) == 1
    assert results == [packed_bytes(one)]


def test_whoever_waits_can_give_up_although_the_filler_makes_no_progress(pool, bundle, monkeypatch):
    """A worker that ends is not held up by a source that hangs in another one."""
    now = [0.0]

    def pause(seconds):
        now[0] += max(seconds, 1.0)

    store, one = pool(budget=32, clock=lambda: now[0], pause=pause), bundle("a", 8)
    stuck, go = threading.Event(), threading.Event()

    def hang(self, buffer, **options):
        stuck.set()
        go.wait(10)
        raise BundleError("SourceChanged", "at last")

    def first():
        with contextlib.suppress(BundleError):
            store.acquire(one, keep=False)

    class EndingError(Exception):
        pass

    looks = []

    def progress(done):
        looks.append(done)
        if len(looks) == 3:
            raise EndingError

    monkeypatch.setattr(WeightsFile, "read_into", hang)
    filler = threading.Thread(target=first)
    filler.start()
    stuck.wait(10)
    with pytest.raises(EndingError):
        store.acquire(one, keep=False, progress=progress)
    assert looks == [0, 0, 0]
    go.set()
    filler.join(20)


def test_a_filler_without_progress_is_not_waited_for_for_ever(pool, bundle, read, monkeypatch):
    now = [0.0]

    def pause(seconds):
        now[0] += max(seconds, 1.0)

    store = pool(budget=32, clock=lambda: now[0], pause=pause)
    one = bundle("a", 8)
    stuck, go = threading.Event(), threading.Event()
    real = WeightsFile.read_into

    def hang(self, buffer, **options):
        stuck.set()
        go.wait(10)
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", hang)
    filler = threading.Thread(target=lambda: store.acquire(one, keep=False).close())
    filler.start()
    stuck.wait(10)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert "has made no progress" in store.trouble([one]).message
    go.set()
    filler.join(20)
    assert read(transfer) == packed_bytes(one)
