# SPDX-License-Identifier: Apache-2.0
"""The traces have the shape that they say, and the bound is right where it can be known otherwise."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import policy, traces
from benchmarks.traces import Reference

SIZE = 1 << 30


def workload(models, *, sizes, capacity):
    trace = [Reference(float(at), model) for at, model in enumerate(models)]
    return policy.Workload(trace, sizes, capacity)


def belady(models, slots):
    """Misses of the optimum for equal sizes: who is needed last goes (Belady, 1966)."""
    held, misses = set(), 0
    for at, model in enumerate(models):
        if model not in held:
            misses += 1
            if len(held) == slots:
                rest = models[at:]
                held.remove(max(held, key=lambda one: rest.index(one) if one in rest else len(models)))
            held.add(model)
    return misses


@pytest.mark.parametrize("name", traces.SHAPES)
def test_a_trace_is_in_order_of_time_complete_and_the_same_for_the_same_seed(name):
    shape = traces.SHAPES[name]
    trace = shape(3, models=40, requests=2000)
    assert len(trace) == 2000
    assert all(before.seconds <= after.seconds for before, after in pairwise(trace))
    assert {reference.model for reference in trace} <= set(range(40))
    assert trace == shape(3, models=40, requests=2000)
    assert trace != shape(4, models=40, requests=2000)


@pytest.mark.parametrize("name", traces.SHAPES)
def test_requests_come_as_often_as_asked_for(name):
    trace = traces.SHAPES[name](1, models=60, requests=20_000, per_second=20.0)
    assert 20_000 / trace[-1].seconds == pytest.approx(20.0, rel=0.5)


def test_zipf_requests_fall_with_the_rank():
    counts = sorted(Counter(r.model for r in traces.zipf(1, models=50, requests=50_000)).values(), reverse=True)
    assert counts[0] / counts[9] == pytest.approx(10**0.8, rel=0.2)


def test_requests_of_a_group_vary_more_than_independent_ones():
    trace = traces.bursty_groups(1, models=60, requests=20_000)
    top, _ = Counter(r.model for r in trace).most_common(1)[0]
    times = [r.seconds for r in trace if r.model == top]
    gaps = [after - before for before, after in pairwise(times)]
    assert pstdev(gaps) / fmean(gaps) > 1.5


def test_the_scan_asks_for_every_cold_model_in_turn():
    trace = traces.scan_over_hot_set(1, models=50, requests=4000)
    often = {model for model, _ in Counter(r.model for r in trace).most_common(10)}
    scan = [r.model for r in trace if r.model not in often]
    assert scan[:40] == scan[40:80]
    assert len(set(scan[:40])) == 40
    assert len(scan) / len(trace) == pytest.approx(0.25, rel=0.2)


def test_what_is_popular_shifts():
    trace = traces.shifting_zipf(1, models=50, requests=20_000, per_second=20.0, phase_seconds=100.0)
    tops = {
        Counter(r.model for r in trace[start : start + 1500]).most_common(1)[0][0] for start in range(0, 18_000, 2000)
    }
    assert len(tops) > 3


def test_sizes_span_three_orders_of_magnitude_and_are_multiples_of_256():
    sizes = traces.catalogue(1, 500)
    assert all(size % 256 == 0 for size in sizes)
    assert max(sizes) / min(sizes) > 100


@settings(max_examples=40)
@given(models=st.lists(st.integers(0, 5), min_size=1, max_size=60), slots=st.integers(1, 6))
def test_for_equal_sizes_the_bound_is_beladys_optimum(models, slots):
    load = workload(models, sizes=[SIZE] * 6, capacity=slots * SIZE)
    assert policy.lower_bound(load) == pytest.approx(belady(models, slots) * load.reload_seconds(0))


@settings(max_examples=40)
@given(
    models=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    sizes=st.lists(st.integers(1, 8), min_size=6, max_size=6),
    capacity=st.integers(8, 30),
)
def test_no_policy_stays_below_the_bound(models, sizes, capacity):
    load = workload(models, sizes=[size * SIZE for size in sizes], capacity=capacity * SIZE)
    bound = policy.lower_bound(load) * (1 - 1e-9)
    assert policy.simulate(load, policy.Ballast(load)) >= bound
    assert policy.simulate(load, policy.LeastRecentlyUsed(load)) >= bound


def test_a_device_that_holds_everything_loads_each_model_once():
    load = workload([0, 1, 2, 0, 1, 2], sizes=[SIZE] * 3, capacity=3 * SIZE)
    once = 3 * load.reload_seconds(0)
    for reload_seconds in (
        policy.simulate(load, policy.Ballast(load)),
        policy.simulate(load, policy.LeastRecentlyUsed(load)),
        policy.lower_bound(load),
    ):
        assert reload_seconds == pytest.approx(once)


@pytest.mark.parametrize("name", traces.SHAPES)
def test_ours_loses_to_lru_on_no_trace(name):
    sizes = traces.catalogue(0, policy.MODELS)
    load = policy.Workload(
        traces.SHAPES[name](0, models=policy.MODELS, requests=4000), sizes, sum(sizes) // policy.DEVICE_SHARE
    )
    ours, lru = policy.simulate(load, policy.Ballast(load)), policy.simulate(load, policy.LeastRecentlyUsed(load))
    assert ours < lru
