# SPDX-License-Identifier: Apache-2.0
"""What a resident is worth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.residency import priority


def a_key(**changes):
    return priority.key(**({"reload_seconds": 1.0, "nbytes": 1 << 20, "uses": 3.0, "idle_seconds": 10.0} | changes))


def test_a_model_that_costs_more_to_reload_stays_longer():
    assert a_key(reload_seconds=2.0) > a_key(reload_seconds=1.0)


def test_a_model_that_is_used_more_often_stays_longer():
    assert a_key(uses=4.0) > a_key(uses=3.0)


def test_the_larger_of_two_models_with_equal_cost_goes_first():
    assert a_key(nbytes=2 << 20) < a_key(nbytes=1 << 20)


def test_twice_the_idle_time_halves_the_value():
    assert a_key(idle_seconds=20.0) == pytest.approx(a_key(idle_seconds=10.0) - 1.0)


def test_a_frequent_model_that_nobody_has_called_for_long_goes_before_a_rare_recent_one():
    assert a_key(uses=100.0, idle_seconds=1000.0) < a_key(uses=0.0, idle_seconds=5.0)


def test_a_use_counts_half_after_a_half_life_and_nothing_after_days():
    assert priority.faded(8.0, priority.USES_HALF_LIFE_SECONDS) == pytest.approx(4.0)
    assert priority.faded(1e9, 30 * 86400.0) == 0.0


@given(
    reload_seconds=st.floats(0, 1e6),
    nbytes=st.integers(0, 1 << 50),
    uses=st.floats(0, 1e12),
    idle_seconds=st.floats(0, 1e9),
)
def test_a_key_is_a_number_whatever_the_model(reload_seconds, nbytes, uses, idle_seconds):
    key = priority.key(reload_seconds=reload_seconds, nbytes=nbytes, uses=uses, idle_seconds=idle_seconds)
    assert math.isfinite(key)
    assert math.isfinite(math.exp2(key))


def test_the_minimum_residence_is_a_few_load_times_and_bounded():
    assert priority.minimum_residence(0.5) == pytest.approx(1.0)
    assert priority.minimum_residence(60.0) == priority.MAX_RESIDENCE_SECONDS
