# SPDX-License-Identifier: Apache-2.0
"""What a resident is worth, and the order in which residents go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.residency import priority
from ballast_worker.residency.priority import HALF_LIFE_SECONDS, PriorityOrder


def a_key(**changes):
    return priority.key(**({"reload_seconds": 1.0, "nbytes": 1 << 20, "dispatches": 3, "last_use": 0.0} | changes))


def test_a_model_that_costs_more_to_reload_stays_longer():
    assert a_key(reload_seconds=2.0) > a_key(reload_seconds=1.0)


def test_a_model_that_is_used_more_often_stays_longer():
    assert a_key(dispatches=4) > a_key(dispatches=3)


def test_the_larger_of_two_models_with_equal_cost_goes_first():
    assert a_key(nbytes=2 << 20) < a_key(nbytes=1 << 20)


def test_one_half_life_of_idle_time_halves_the_value():
    assert priority.value_at(a_key(), HALF_LIFE_SECONDS) == pytest.approx(priority.value_at(a_key(), 0.0) / 2)


def test_a_frequent_model_that_nobody_has_called_for_long_goes_before_a_rare_recent_one():
    assert a_key(dispatches=1000, last_use=0.0) < a_key(dispatches=1, last_use=12 * HALF_LIFE_SECONDS)


@given(
    keys=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8, unique=True),
    now=st.floats(0, 1e3 * HALF_LIFE_SECONDS),
)
def test_comparing_keys_compares_values_at_any_time(keys, now):
    by_key = sorted(keys)
    values = [priority.value_at(key, now) for key in by_key]
    assert values == sorted(values)


def test_days_of_idle_time_neither_overflow_nor_raise():
    assert priority.value_at(a_key(last_use=0.0), 30 * 86400.0) == 0.0
    assert priority.value_at(a_key(last_use=30 * 86400.0), 0.0) > 1e100


def test_among_equals_the_least_recently_set_comes_first():
    order = PriorityOrder()
    for name in "abc":
        order.set(name, 1.0)
    order.set("a", 1.0)
    assert list(order) == ["b", "c", "a"]


def test_the_order_is_that_of_the_keys_after_any_changes():
    order, expected, source = PriorityOrder(), {}, random.Random(1)
    for step in range(2000):
        name = f"m{source.randrange(40)}"
        if source.random() < 0.2:
            order.discard(name)
            expected.pop(name, None)
        else:
            key = source.choice([0.0, 1.0, source.random()])
            order.set(name, key)
            expected.pop(name, None)
            expected[name] = (key, step)
        assert len(order) == len(expected)
    assert list(order) == sorted(expected, key=expected.__getitem__)


def test_the_minimum_residence_is_a_few_load_times_and_bounded():
    assert priority.minimum_residence(0.5) == pytest.approx(1.0)
    assert priority.minimum_residence(60.0) == priority.MAX_RESIDENCE_SECONDS
