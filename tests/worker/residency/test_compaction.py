# SPDX-License-Identifier: Apache-2.0
"""Making the free memory one block: on demand, and when a load needs it."""

from __future__ import annotations

import numpy as np
from helpers.plain_bundles import packed_bytes
from helpers.residency_rig import UNIT

from ballast_contract.reasons import Reason
from ballast_worker.device.memory import Moves
from ballast_worker.residency.demand import Readiness, Refusal


def run(worker, mode, *reload):
    results = worker.compact(mode, *reload)
    worker.settle(load_seconds=0.1)
    return results


def still(worker, nbytes):
    """`moves_for` of a memory that cannot slide."""
    return Moves(0, 0) if worker.memory.statistics().largest_free >= nbytes else None


def fragmented(rig, *, capacity=16, width=2):
    """A full device from which every second model has gone."""
    worker = rig(capacity)
    names = [f"m{i}" for i in range(capacity // width)]
    for name in names:
        worker.register(name, width)
    worker.load(*names)
    for name in names[::2]:
        worker.manager.forget(name, lambda: None)
    worker.run()
    assert worker.memory.statistics().largest_free == width * UNIT
    return worker, names[1::2]


def test_a_load_for_which_no_block_is_free_slides_others_and_nobody_goes(rig):
    worker, rest = fragmented(rig)
    worker.register("new", 6)
    worker.load("new")
    assert worker.residents() == {*rest, "new"}
    decision = worker.manager.decisions()[0]
    assert decision.verdict == "admittedAfterMoves"
    assert decision.moved > 0
    assert worker.manager.snapshot().evictions == 0
    lease = worker.manager.lease(rest[-1])
    assert np.asarray(lease.arrays[0]).tobytes() == packed_bytes(worker.bundle(rest[-1], 2))
    lease.release()


def test_a_load_waits_for_the_executions_that_stand_in_the_way_of_a_block(rig):
    worker, rest = fragmented(rig)
    worker.register("new", 8)
    leases = [worker.manager.lease(name) for name in rest]
    worker.manager.want("new")
    worker.settle()
    assert "new" not in worker.residents()
    assert worker.manager.want(rest[0]) is Readiness.LOADING
    for lease in leases:
        lease.release()
    worker.settle()
    assert worker.residents() == {*rest, "new"}
    assert worker.queues.loaded_calls.count(rest[0]) == 2
    assert worker.manager.want(rest[0]) is Readiness.READY


def test_a_load_waits_for_a_fill_that_leaves_no_block_beside_it(rig):
    worker = rig(10)
    for name, units in (("a", 4), ("slow", 2), ("new", 7)):
        worker.register(name, units)
    worker.load("a")
    worker.manager.want("slow")
    worker.loader.end_fetch()
    worker.run()
    worker.manager.want("new")
    worker.loader.end_fetch()
    worker.run()
    assert [key.split("#")[0] for key, _, _ in worker.loader.fills] == ["slow"]
    worker.settle()
    assert worker.residents() == {"slow", "new"}


def test_move_slides_everything_down_and_drops_nothing(rig):
    worker, rest = fragmented(rig)
    (result,) = run(worker, "move")
    assert result.largest_free_before == 2 * UNIT
    assert result.largest_free_after == 8 * UNIT
    assert result.fragmentation_before > 0
    assert result.fragmentation_after == 0
    assert result.moved_bytes == 8 * UNIT
    assert result.reloaded == ()
    assert result.resident_bytes == 8 * UNIT
    assert worker.residents() == set(rest)
    snapshot = worker.manager.snapshot()
    assert (snapshot.compactions, snapshot.moved_bytes, snapshot.evictions) == (1, 8 * UNIT, 0)


def test_free_without_names_drops_what_is_not_pinned(rig):
    worker = rig(10)
    worker.register("p", 3, "device")
    worker.register("a", 4)
    worker.settle()
    worker.load("a")
    (result,) = run(worker, "free")
    assert result.reloaded == ()
    assert worker.residents() == {"p"}
    assert result.resident_bytes == 3 * UNIT
    worker.load("a")
    assert worker.manager.snapshot().compactions == 1


def test_free_brings_back_the_named_ones(rig):
    worker = rig(10)
    for name in "ab":
        worker.register(name, 4)
    worker.load("a", "b")
    (result,) = run(worker, "free", "a")
    assert result.reloaded == ("a",)
    assert worker.residents() == {"a"}
    assert result.seconds_until_callable > result.seconds_until_moved


def test_named_models_come_back_largest_first_and_those_that_do_not_fit_are_named(rig):
    worker = rig(10)
    for name, units in (("a", 2), ("b", 5), ("c", 4), ("d", 3)):
        worker.register(name, units)
    (result,) = run(worker, "free", "a", "b", "c", "d", "nobody")
    assert result.reloaded == ("b", "c")
    assert {name: refusal.reason for name, refusal in result.not_reloaded.items()} == {
        "a": Reason.INSUFFICIENT_DEVICE_MEMORY,
        "d": Reason.INSUFFICIENT_DEVICE_MEMORY,
        "nobody": Reason.NOT_REQUESTED,
    }
    assert worker.manager.snapshot().evictions == 0


def test_a_named_model_that_cannot_be_read_is_named_with_the_reason(rig):
    worker = rig(10)
    worker.register("a", 4)
    results = worker.compact("free", "a")
    worker.run()
    worker.loader.end_fetch(error=OSError("the disk is gone"))
    worker.run()
    assert results[0].not_reloaded["a"].reason is Reason.LOAD_FAILED_WILL_RETRY


def test_a_compaction_waits_for_running_executions_and_nobody_fails(rig):
    worker, rest = fragmented(rig)
    lease = worker.manager.lease(rest[0])
    before = np.asarray(lease.arrays[0]).tobytes()
    results = worker.compact("move")
    worker.run()
    assert results == []
    assert worker.manager.want(rest[1]) is Readiness.LOADING
    assert np.asarray(lease.arrays[0]).tobytes() == before
    lease.release()
    worker.run()
    assert len(results) == 1
    assert worker.manager.want(rest[1]) is Readiness.READY
    assert worker.queues.loaded_calls[-1] == rest[1]


def test_requests_held_back_by_a_compaction_that_freed_their_model_are_loaded_for(rig):
    worker = rig(10)
    for name in "ab":
        worker.register(name, 4)
    worker.load("a", "b")
    lease = worker.manager.lease("a")
    results = worker.compact("free")
    assert worker.manager.want("b") is Readiness.LOADING
    lease.release()
    worker.settle()
    assert len(results) == 1
    assert worker.residents() == {"b"}
    assert worker.queues.loaded_calls == ["a", "b", "b"]


def test_a_model_that_is_held_back_on_the_device_is_not_expected_to_take_as_long_as_its_load(rig):
    worker = rig(10)
    for name in "ab":
        worker.register(name, 4)
    worker.load("a", "b", load_seconds=20.0)
    lease = worker.manager.lease("a")
    worker.compact("move")
    assert worker.manager.want("b") is Readiness.LOADING
    assert worker.manager.expected_load_seconds("b") is None
    lease.release()
    worker.settle()
    assert worker.manager.want("b") is Readiness.READY


def test_a_second_compaction_is_refused_while_one_runs(rig):
    worker, rest = fragmented(rig)
    lease = worker.manager.lease(rest[0])
    worker.compact("move")
    (refusal,) = worker.compact("move")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BUSY
    lease.release()
    worker.run()


def test_a_model_loaded_for_a_request_that_has_not_run_is_not_freed(rig):
    worker = rig(10)
    worker.register("a", 4)
    worker.queues.waiting["a"] = 1
    worker.load("a")
    run(worker, "free")
    assert worker.residents() == {"a"}


def test_a_named_model_that_is_forgotten_meanwhile_does_not_hold_the_answer_up(rig):
    worker = rig(10)
    worker.register("a", 4)
    results = worker.compact("free", "a")
    worker.run()
    worker.manager.forget("a", lambda: None)
    worker.settle()
    assert results[0].not_reloaded["a"].reason is Reason.NOT_REQUESTED


def test_memory_that_cannot_slide_is_emptied_once_and_the_load_tried_again(rig, monkeypatch):
    """Bytes enough, no block, nothing in the way."""
    worker, rest = fragmented(rig)
    monkeypatch.setattr(worker.memory, "moves_for", lambda nbytes: still(worker, nbytes))
    worker.register("new", 6)
    worker.load("new")
    snapshot = worker.manager.snapshot()
    assert snapshot.fallback_compactions == 1
    # Those that had to go come back as far as they fit.
    assert worker.residents() == {*rest, "new"}
    assert worker.manager.decisions()[-1].model


def test_a_load_across_pinned_models_that_cannot_slide_is_refused_with_the_largest_block(rig, monkeypatch):
    worker = rig(10)
    worker.register("a", 4)
    worker.load("a")
    worker.register("p", 2, "device")
    worker.settle()
    worker.register("b", 4)
    worker.load("b")
    monkeypatch.setattr(worker.memory, "moves_for", lambda nbytes: still(worker, nbytes))
    monkeypatch.setattr(worker.memory, "compact", lambda: Moves(0, 0))
    worker.register("new", 6)
    worker.now += 1
    worker.manager.want("new")
    worker.settle()
    ((_, refusal),) = worker.queues.refused_calls
    assert refusal.reason is Reason.NOT_CONTIGUOUS
    assert f"largest block has {4 * UNIT}" in refusal.message
    assert "p" in worker.residents()
    assert worker.manager.snapshot().largest_waiting_bytes == 6 * UNIT
    assert worker.manager.snapshot().admission_failures == 1
