# SPDX-License-Identifier: Apache-2.0
"""Residency where weights share XLA's allocator with executions: nothing moves, and a block for scratch stays free."""

from __future__ import annotations

from helpers.residency_rig import UNIT

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Readiness


def test_without_one_block_the_cheapest_go_one_by_one_until_there_is_one(rig):
    worker = rig(16, beside_scratch=2)
    for name in "abcdefgh":
        worker.register(name, 2)
    worker.load(*"abcdefgh")
    worker.pass_time(10)
    for name in "egh":
        worker.execute(name)
    for name in "bdf":
        worker.manager.forget(name, lambda: None)
    worker.run()
    worker.register("large", 6)
    assert worker.free() == 6
    worker.load("large")
    decision = worker.manager.decisions()[0]
    assert (decision.verdict, decision.evicted) == ("admittedAfterEviction", ("a", "c"))
    assert worker.on_device("e", "g", "h")
    assert worker.manager.snapshot().fallback_compactions == 0


def test_weights_never_take_the_block_that_scratch_needs(rig):
    worker = rig(12, beside_scratch=6)
    for name in "abc":
        worker.register(name, 4)
    worker.load("a", "b", "c")
    worker.register("d", 3)
    worker.load("d")
    assert worker.pool.allocator.largest_free >= 6 * UNIT
    assert not worker.on_device("a")


def test_when_all_had_to_go_the_most_valuable_come_back_where_they_leave_the_scratch_block(rig):
    worker = rig(10, beside_scratch=6)
    for name in "abcd":
        worker.register(name, 2, pieces=2)
    worker.load("a", "b", "c", "d")
    for _ in range(8):
        worker.execute("b")
    worker.register("large", 8)
    worker.pass_time(10)
    worker.load("large")
    snapshot = worker.manager.snapshot()
    assert (snapshot.fallback_compactions, snapshot.compactions) == (1, 1)
    assert worker.residents() == {"large", "b"}
    assert worker.pool.allocator.largest_free >= 6 * UNIT


def test_a_pinned_model_in_the_middle_leaves_no_block_and_the_refusal_says_so(rig):
    worker = rig(14, beside_scratch=2)
    worker.register("low", 6)
    worker.load("low")
    worker.register("pinned", 2, "device")
    worker.settle()
    worker.register("large", 12)
    worker.manager.want("large")
    worker.settle()
    name, refusal = worker.queues.refused_calls[-1]
    assert (name, refusal.reason) == ("large", Reason.NOT_CONTIGUOUS)
    assert worker.on_device("pinned")
    assert worker.model("low").evictions == 1


def test_a_fill_waits_for_executions_under_way_and_no_new_one_begins_beside_it(rig):
    worker = rig(8, beside_scratch=2)
    worker.register("a", 2)
    worker.register("b", 2)
    worker.load("a")
    lease = worker.manager.lease("a")
    assert worker.manager.want("b") is Readiness.LOADING
    worker.run()
    worker.loader.end_fetch()
    worker.run()
    assert not worker.loader.fills
    assert worker.manager.want("a") is Readiness.LOADING
    lease.release()
    worker.run()
    assert len(worker.loader.fills) == 1
    assert worker.manager.want("a") is Readiness.LOADING
    worker.loader.end_fill()
    worker.run()
    assert worker.queues.loaded_calls[-2:] == ["b", "a"]
    assert worker.manager.want("a") is Readiness.READY


def test_between_two_fills_whatever_has_requests_is_executed(rig):
    worker = rig(12, beside_scratch=2)
    for name in "abc":
        worker.register(name, 2)
    for name in "abc":
        worker.manager.want(name)
        worker.queues.waiting[name] = 1
    worker.run()
    while worker.loader.fetches:
        worker.loader.end_fetch()
    worker.run()
    worker.loader.end_fill()
    worker.run()
    assert not worker.loader.fills
    lease = worker.manager.lease("a")
    worker.queues.waiting["a"] = 0
    lease.release()
    worker.run()
    assert len(worker.loader.fills) == 1
    worker.settle()


def test_models_are_loaded_ahead_only_as_far_as_the_scratch_block_stays_free(rig):
    worker = rig(10, beside_scratch=4)
    for name, units in (("a", 6), ("b", 5), ("c", 3)):
        worker.register(name, units)
    worker.manager.fill_free()
    worker.settle()
    assert worker.residents() == {"a", "c"}
    assert worker.pool.allocator.largest_free >= 4 * UNIT


def test_compaction_frees_and_reloads_everything_largest_first(rig):
    worker = rig(20, beside_scratch=2)
    for name, units in (("a", 2), ("b", 4), ("c", 3), ("d", 2), ("p", 2)):
        worker.register(name, units, "device" if name == "p" else "unpinned")
    worker.load("a", "b", "c", "d")
    worker.manager.forget("a", lambda: None)
    worker.run()
    before = worker.memory.statistics()
    results = worker.compact("move")
    worker.settle()
    (result,) = results
    assert result.reloaded == ("b", "c", "d")
    assert (result.largest_free_before, result.moved_bytes) == (before.largest_free, 0)
    assert result.largest_free_after >= before.largest_free
    assert worker.on_device("b", "c", "d", "p")


def test_a_failed_fill_gives_back_every_byte(rig):
    worker = rig(8, beside_scratch=2)
    worker.register("a", 2)
    worker.register("b", 4, pieces=4)
    worker.load("a")
    before = worker.pool.statistics()
    worker.store.fail_chunk = 1
    worker.manager.want("b")
    worker.settle()
    assert worker.queues.refused_calls[-1][0] == "b"
    assert worker.pool.statistics() == before
    assert worker.memory.exact
    worker.store.fail_chunk = -1


def test_where_the_allocator_does_otherwise_a_load_that_it_refuses_fails_alone(rig):
    worker = rig(16, beside_scratch=2)
    held = worker.pool.allocator.allocate_all([UNIT, 5 * UNIT, UNIT])
    worker.register("a", 1)
    worker.load("a")
    assert not worker.memory.exact, "somebody else holds bytes that the replay knows nothing of"
    worker.pool.allocator.free(held[1])
    worker.register("large", 13)
    worker.manager.want("large")
    worker.settle()
    name, refusal = worker.queues.refused_calls[-1]
    assert (name, refusal.reason) == ("large", Reason.LOAD_FAILED_WILL_RETRY)
    assert worker.on_device("a")


def next_lands_at(worker, units: int) -> None:
    """The next tensor is put somewhere else than the replay of the allocator foresees."""
    allocator = worker.pool.allocator
    foreseen = allocator.allocate

    def allocate(nbytes: int) -> int:
        allocator.allocate = foreseen
        allocator.allocate_at(units * UNIT, nbytes)
        return units * UNIT

    allocator.allocate = allocate


def test_an_upload_that_lands_in_the_block_for_scratch_makes_the_cheapest_go_until_there_is_one_again(rig):
    """Ten units are free and four are asked for, so that nobody would have to go."""
    worker = rig(12, beside_scratch=6)
    for name, units in (("a", 2), ("b", 2), ("c", 4), ("new", 2)):
        worker.register(name, units)
    worker.load("a", "b", "c")
    for name in "aac":
        worker.execute(name)
    worker.pass_time(10)
    next_lands_at(worker, 12)  # 4 units below it and 4 above
    worker.load("new")
    assert worker.memory.exact
    assert worker.pool.allocator.largest_free >= 6 * UNIT
    assert worker.residents() == {"a", "new"}, "b went first, which was not enough, then c"
    assert (worker.model("b").evictions, worker.model("c").evictions) == (1, 1)


def test_the_block_for_scratch_is_worth_more_than_a_minimum_residence(rig):
    worker = rig(12, beside_scratch=6)
    for name, units in (("a", 4), ("b", 4), ("new", 2)):
        worker.register(name, units)
    worker.load("a", "b")
    worker.pass_time(10)
    worker.execute("b")
    assert worker.manager._board.extents[worker.memory.extents()[1].key].stays_until > worker.now
    next_lands_at(worker, 12)
    worker.load("new")
    assert worker.residents() == {"new"}, "a was free to go and not enough"
    assert worker.memory.starved() is False


def test_where_only_the_new_model_could_make_a_block_for_scratch_it_stays(rig):
    worker = rig(4, beside_scratch=6)
    worker.register("new", 2)
    next_lands_at(worker, 4)
    worker.load("new")
    assert worker.memory.starved()
    assert worker.residents() == {"new"}
