# SPDX-License-Identifier: Apache-2.0
"""The cheapest set that frees enough."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.residency import eviction
from ballast_worker.residency.eviction import cheapest_set, cost


@dataclass(frozen=True)
class One:
    name: str
    nbytes: int
    key: float


def ordered(*items):
    return sorted((One(f"m{i}", nbytes, key) for i, (nbytes, key) in enumerate(items)), key=lambda one: one.key)


def brute_force(candidates, shortfall):
    """The least cost of any subset that frees enough."""
    top = candidates[-1].key
    subsets = [(0, 0.0)]
    for one in candidates:
        subsets += [(freed + one.nbytes, paid + cost(one, top)) for freed, paid in subsets]
    return min(paid for freed, paid in subsets if freed >= shortfall)


def paid(chosen, candidates):
    return sum(cost(one, candidates[-1].key) for one in chosen)


def test_nothing_goes_when_nothing_is_missing():
    assert cheapest_set(ordered((5, 1.0)), 0) == []


def test_none_when_all_together_do_not_free_enough():
    assert cheapest_set(ordered((5, 1.0), (5, 2.0)), 11) is None
    assert cheapest_set([], 1) is None


def test_exactly_one_of_twelve_equals_goes():
    """Filling the device with equals and asking for one more must not empty it. kserve/modelmesh-serving#455."""
    assert len(cheapest_set(ordered(*[(20 << 20, 1.0)] * 12), 20 << 20)) == 1


def test_the_first_in_order_goes_among_equals():
    """The order has the least recently used first."""
    candidates = [One(name, 20, 1.0) for name in "abcdef"]
    assert [one.name for one in cheapest_set(candidates, 20)] == ["a"]
    assert [one.name for one in cheapest_set(candidates, 30)] == ["a", "b"]


def test_one_large_idle_model_goes_before_two_small_busy_ones():
    candidates = ordered((100, 0.0), (40, 3.0), (40, 3.0))
    assert [one.nbytes for one in cheapest_set(candidates, 80)] == [100]


def test_a_small_model_goes_before_a_large_one_of_slightly_less_value_per_byte():
    assert [one.nbytes for one in cheapest_set(ordered((1000, 0.0), (10, 0.5)), 10)] == [10]


def test_members_that_turned_out_superfluous_stay():
    chosen = cheapest_set(ordered(*[(1, 0.0)] * 20, (100, 0.1)), 100)
    assert [one.nbytes for one in chosen] == [100]


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 6.0, 30.0, 5000.0])
def test_the_cost_is_within_five_percent_of_brute_force_at_twelve(spread):
    source = random.Random(int(spread * 10))
    for _ in range(25):
        candidates = ordered(*[(source.randint(1, 300), source.uniform(0, spread)) for _ in range(12)])
        shortfall = int(sum(one.nbytes for one in candidates) * source.uniform(0.01, 0.95)) + 1
        chosen = cheapest_set(candidates, shortfall)
        assert paid(chosen, candidates) <= brute_force(candidates, shortfall) * 1.05 + 1e-300


@given(
    sizes=st.lists(st.tuples(st.integers(1, 64), st.floats(0, 8)), min_size=1, max_size=60),
    share=st.floats(0.001, 1.0),
)
def test_the_set_frees_enough_and_nobody_in_it_is_superfluous(sizes, share):
    candidates = ordered(*sizes)
    shortfall = max(1, int(sum(one.nbytes for one in candidates) * share))
    chosen = cheapest_set(candidates, shortfall)
    freed = sum(one.nbytes for one in chosen)
    assert freed >= shortfall
    assert len({one.name for one in chosen}) == len(chosen)
    assert all(freed - one.nbytes < shortfall for one in chosen)


def test_the_search_looks_at_each_of_ten_thousand_candidates_a_few_times_at_most(monkeypatch):
    calls = 0
    real = eviction.cost

    def counted(candidate, top):
        nonlocal calls
        calls += 1
        return real(candidate, top)

    monkeypatch.setattr(eviction, "cost", counted)
    source = random.Random(3)
    candidates = ordered(*[(source.randint(1, 300), source.uniform(0, 6)) for _ in range(10_000)])
    cheapest_set(candidates, sum(one.nbytes for one in candidates) // 2)
    assert calls <= 4 * len(candidates)


def test_the_exact_search_ends_within_its_steps_on_inputs_that_prune_badly():
    candidates = ordered(*[(1000 + 2 * i, 1.0 + i * 1e-9) for i in range(eviction.EXACT_LIMIT)])
    assert cheapest_set(candidates, 8001) is not None
