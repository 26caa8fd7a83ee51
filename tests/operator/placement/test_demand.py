# SPDX-License-Identifier: Apache-2.0
"""Demand of models: counters folded into rates that fade with use."""

from __future__ import annotations

import pytest

from ballast_operator.placement.demand import Counters, Demand, blend, fold, since


def fold_one(old, *, requests, seconds, elapsed=10.0, half_life=300.0):
    counted = {"m": Counters(requests, seconds)}
    return fold({"m": old}, counted, elapsed_seconds=elapsed, half_life_compute_seconds=half_life)["m"]


def test_a_sample_after_one_half_life_weighs_as_much_as_all_before():
    assert fold_one(Demand(0.0, 1.0), requests=10, seconds=300.0).rate == pytest.approx(0.5)


def test_a_steady_rate_stays():
    assert fold_one(Demand(2.0, 3.0), requests=20, seconds=60.0) == Demand(2.0, 3.0)


def test_the_weight_of_a_sample_follows_the_compute_seconds():
    assert fold_one(Demand(0.0, 6.0), requests=10, seconds=60.0).rate == pytest.approx(1 - 2 ** (-60 / 300))


def test_the_first_window_is_taken_whole_however_short_and_weighs_little_against_the_next():
    def after(old, requests, seconds):
        counted = {"m": Counters(requests, seconds)}
        return fold(old, counted, elapsed_seconds=10.0, half_life_compute_seconds=300.0)

    first = after({}, 100, 3.0)
    assert (first["m"].rate, first["m"].cost) == (pytest.approx(10.0), pytest.approx(0.03))
    assert after(first, 0, 300.0)["m"].rate == pytest.approx(10.0 * 0.5 * (1 - 2**-0.01) / (1 - 2**-1.01))


def test_windows_in_which_nobody_is_called_say_nothing():
    assert fold_one(Demand(0.0, None, 0.0), requests=0, seconds=0.0) == Demand(0.0, None, 0.0)


def test_an_idle_pool_keeps_what_it_knows():
    assert fold_one(Demand(2.0, 0.1), requests=0, seconds=0.0) == Demand(2.0, 0.1)


def test_an_idle_model_of_a_busy_pool_fades():
    known = {"idle": Demand(2.0, 0.1), "busy": Demand(1.0, 1.0)}
    counted = {"idle": Counters(0, 0.0), "busy": Counters(300, 300.0)}
    folded = fold(known, counted, elapsed_seconds=300.0, half_life_compute_seconds=300.0)
    assert folded["idle"] == Demand(1.0, 0.1)


def test_the_first_cost_is_taken_whole():
    assert fold_one(Demand(0.0, None), requests=4, seconds=0.2).cost == pytest.approx(0.05)


def test_a_model_without_a_cost_needs_nothing_yet():
    assert Demand(5.0, None).utilization == 0.0
    assert Demand(5.0, 0.1).utilization == pytest.approx(0.5)


def test_models_that_are_not_counted_any_more_are_forgotten():
    assert fold({"gone": Demand(1.0, 1.0)}, {}, elapsed_seconds=1.0, half_life_compute_seconds=300.0) == {}


def test_counters_are_summed_over_workers():
    before = {("a", "m"): Counters(10, 1.0), ("b", "m"): Counters(5, 0.5)}
    now = {("a", "m"): Counters(12, 1.5), ("b", "m"): Counters(9, 1.0)}
    assert since(before, now) == {"m": Counters(6, 1.0)}


def test_a_counter_that_fell_becomes_the_base_and_counts_for_nothing():
    before = {("a", "m"): Counters(100, 10.0)}
    assert since(before, {("a", "m"): Counters(3, 0.3)}) == {"m": Counters(0, 0.0)}


def test_the_first_reading_of_a_worker_counts_for_nothing():
    assert since({}, {("new", "m"): Counters(100, 10.0)}) == {"m": Counters(0, 0.0)}


def test_blending_with_no_weight_changes_nothing():
    assert blend(2.0, 9.0, 0.0) == 2.0
