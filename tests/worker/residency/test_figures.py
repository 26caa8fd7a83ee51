# SPDX-License-Identifier: Apache-2.0
"""What is told of loads, evictions and compactions is what the clock showed."""

from __future__ import annotations

import pytest
from helpers.residency_rig import UNIT

from ballast_worker.device.memory import Moves


def with_holes(rig):
    """Four models of two units each, with as much free between them; a byte that moves takes 1 µs."""
    worker = rig(16)
    for name in "abcdefgh":
        worker.register(name, 2)
    worker.load(*"abcdefgh")
    for name in "aceg":
        worker.manager.forget(name, lambda: None)
    worker.run()
    move = worker.memory._backend.move

    def slow(source, target, nbytes):
        worker.now += nbytes * 1e-6
        move(source, target, nbytes)

    worker.memory._backend.move = slow
    return worker


def test_the_age_of_an_eviction_is_how_long_the_model_had_been_idle(rig):
    worker = rig(4)
    for name in "ab":
        worker.register(name, 4)
    worker.load("a")
    assert worker.manager.snapshot().eviction_age_seconds is None
    worker.execute("a")
    worker.pass_time(42)
    worker.load("b", load_seconds=0.0)
    assert worker.manager.snapshot().eviction_age_seconds == pytest.approx(42)


def test_the_seconds_of_a_load_are_told_apart_by_work_and_waiting(rig):
    worker = rig(4)
    for name in "ab":
        worker.register(name, 4)
    worker.load("a", load_seconds=0.0)
    lease = worker.manager.lease("a")
    worker.manager.want("b")
    worker.settle()
    worker.pass_time(7)
    lease.release()
    worker.settle(load_seconds=2.0)
    snapshot = worker.manager.snapshot()
    assert (snapshot.loads, snapshot.load_bytes) == (2, 8 * UNIT)
    assert snapshot.load_seconds == pytest.approx(9)
    assert snapshot.load_wait_seconds == pytest.approx(7)


def test_a_compaction_counts_the_seconds_in_which_bytes_moved_and_its_answer_those_from_the_request(rig):
    worker = with_holes(rig)
    lease = worker.manager.lease("b")
    results = worker.compact("move")
    worker.pass_time(5)
    assert results == []
    lease.release()
    worker.run()
    moving = 8 * UNIT * 1e-6
    assert worker.manager.snapshot().compaction_seconds == pytest.approx(moving)
    assert results[0].seconds_until_moved == pytest.approx(5 + moving)
    assert results[0].seconds_until_callable == pytest.approx(5 + moving)


def test_the_seconds_until_callable_go_on_until_the_last_named_model_is_back(rig):
    worker = with_holes(rig)
    results = worker.compact("free", "b")
    worker.run()
    worker.settle(load_seconds=3.0)
    assert results[0].seconds_until_moved == pytest.approx(0)
    assert results[0].seconds_until_callable == pytest.approx(3)


def test_sliding_for_one_load_counts_its_seconds_and_is_no_compaction(rig):
    worker = with_holes(rig)
    worker.register("new", 4)
    worker.load("new")
    snapshot = worker.manager.snapshot()
    assert snapshot.moved_bytes > 0
    assert snapshot.compaction_seconds == pytest.approx(snapshot.moved_bytes * 1e-6)
    assert snapshot.compactions == 0


def test_the_last_resort_of_a_load_counts_the_seconds_of_its_moves(rig, monkeypatch):
    worker = with_holes(rig)
    worker.register("d", 2, "device")
    worker.settle()

    def still(nbytes):
        return Moves(0, 0) if worker.memory.statistics().largest_free >= nbytes else None

    monkeypatch.setattr(worker.memory, "moves_for", still)
    worker.register("new", 8)
    worker.load("new")
    snapshot = worker.manager.snapshot()
    assert (snapshot.fallback_compactions, snapshot.compactions) == (1, 1)
    assert snapshot.moved_bytes == 2 * UNIT, "the pinned one stays, and slides"
    assert snapshot.compaction_seconds == pytest.approx(snapshot.moved_bytes * 1e-6)
