# SPDX-License-Identifier: Apache-2.0
"""Who has to go for a load, decided on paper."""

from __future__ import annotations

from ballast_contract.reasons import Reason
from ballast_worker.device.memory import ExtentInfo, State
from ballast_worker.residency.admission import (
    Evict,
    Excluded,
    Resident,
    Stuck,
    Wait,
    free_block,
    free_bytes,
    infeasible,
)


def resident(name, nbytes, *, key=0.0, queued=False, excluded=Excluded.NOT):
    return Resident(name, name, nbytes, key, queued, excluded)


def gone(choice):
    assert isinstance(choice, Evict)
    return sorted(r.model for r in choice.residents)


def extent(key, offset, nbytes, state=State.READY):
    return ExtentInfo(key, offset, nbytes, state, pinned=False)


def refuse(**changes):
    given = {
        "model": "m",
        "nbytes": 10,
        "scratch": 1,
        "capacity": 100,
        "pinned": 0,
        "scratch_limit": 5,
        "weights_percent": 50,
    }
    return infeasible(**(given | changes))


def test_what_fits_beside_the_pinned_models_is_feasible():
    assert refuse(nbytes=60, pinned=40) is None


def test_weights_beside_pinned_ones_beyond_the_device_are_refused_with_both_numbers():
    refusal = refuse(nbytes=61, pinned=40)
    assert refusal.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert all(number in refusal.message for number in ("61 bytes", "100 bytes", "40 are pinned", "1 bytes short"))
    assert refusal.retry_after_seconds is None


def test_the_budget_that_is_named_counts_that_only_a_part_of_it_is_for_weights():
    short = 10 << 20
    assert "raise device.budget by 20Mi" in refuse(nbytes=short, capacity=0).message  # half of it


def test_scratch_beyond_the_pool_is_refused_with_both_numbers():
    refusal = refuse(scratch=6)
    assert refusal.reason is Reason.SCRATCH_EXCEEDS_POOL
    assert "needs 6 bytes" in refusal.message
    assert "the pool has 5" in refusal.message


def test_the_idle_one_goes_even_when_the_one_with_requests_is_worth_less():
    assert gone(free_bytes([resident("queued", 50, key=-5, queued=True), resident("idle", 50, key=5)], 50)) == ["idle"]


def test_models_with_requests_go_only_as_far_as_idle_ones_do_not_suffice():
    residents = [
        resident("q1", 20, key=0, queued=True),
        resident("q2", 20, key=1, queued=True),
        resident("idle", 50, key=5),
    ]
    assert gone(free_bytes(residents, 60)) == ["idle", "q1"]


def test_what_executes_is_drained_only_when_nothing_else_suffices():
    residents = [resident("busy", 60, key=-9, excluded=Excluded.EXECUTING), resident("idle", 60, key=9)]
    assert gone(free_bytes(residents, 60)) == ["idle"]
    choice = free_bytes(residents, 61)
    assert isinstance(choice, Wait)
    assert [r.model for r in choice.drain] == ["busy"]


def test_pinned_loading_leased_and_recent_residents_never_go():
    never = (Excluded.PINNED, Excluded.LOADING, Excluded.LEASED, Excluded.RECENT)
    residents = [resident(kind.value, 100, excluded=kind) for kind in never]
    assert free_bytes(residents, 1) == Wait()


def test_a_resident_without_bytes_is_not_sent_away():
    assert gone(free_bytes([resident("empty", 0, key=-9), resident("full", 10)], 5)) == ["full"]


def test_an_execution_in_the_way_of_a_block_is_waited_for():
    extents = [extent("a", 40, 20, State.EXECUTING)]
    assert free_block(extents, [], capacity=100, needed=70) == Wait(quiet=True)


def test_a_fill_in_the_way_costs_the_cheapest_residents_beside_it():
    extents = [extent("a", 0, 30), extent("fill", 30, 20, State.FILLING), extent("b", 60, 30)]
    residents = [resident("b", 30, key=0), resident("a", 30, key=1)]
    assert gone(free_block(extents, residents, capacity=100, needed=45)) == ["b"]


def test_beside_a_fill_the_side_without_requests_is_emptied():
    extents = [extent("a", 0, 50), extent("fill", 50, 10, State.FILLING), extent("b", 60, 40)]
    residents = [resident("b", 40, key=0, queued=True), resident("a", 50, key=9)]
    assert gone(free_block(extents, residents, capacity=100, needed=40)) == ["a"]


def test_a_fill_that_leaves_no_side_large_enough_is_waited_for():
    extents = [extent("fill", 40, 20, State.FILLING)]
    assert free_block(extents, [], capacity=100, needed=50) == Wait()


def test_enough_bytes_without_a_block_and_nothing_in_the_way_is_stuck():
    extents = [extent("pinned", 40, 20)]
    assert free_block(extents, [], capacity=100, needed=50) == Stuck()


def test_an_extent_without_bytes_is_in_nobodys_way():
    extents = [extent("empty", 0, 0, State.FILLING), extent("a", 40, 20, State.EXECUTING)]
    assert free_block(extents, [], capacity=100, needed=80) == Wait(quiet=True)
