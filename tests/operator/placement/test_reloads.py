# SPDX-License-Identifier: Apache-2.0
"""How many bytes are loaded where models take turns: the estimate, against a device that keeps what was used last."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_operator.placement.load import Load
from ballast_operator.placement.model import ModelDemand, WorkerCapacity
from ballast_operator.placement.reloads import Reloads, expected, reloads_of

swapped = st.lists(st.tuples(st.floats(0.001, 100), st.integers(1, 1000)), min_size=1, max_size=12)


def counted(models, room, *, calls, seed):
    """Bytes per second that a device loads which keeps what was used last, under independent calls."""
    rng = random.Random(seed)
    rates = [rate for rate, _ in models]
    resident, loaded = OrderedDict(), 0
    for chosen in rng.choices(range(len(models)), rates, k=calls):
        if chosen in resident:
            resident.move_to_end(chosen)
            continue
        nbytes = models[chosen][1]
        while sum(resident.values()) + nbytes > room:
            resident.popitem(last=False)
        resident[chosen] = nbytes
        loaded += nbytes
    return loaded * sum(rates) / calls


@pytest.mark.parametrize("seed", range(8))
def test_the_estimate_is_close_to_a_device_that_keeps_what_was_used_last(seed):
    rng = random.Random(seed)
    models = [(1 / (rank + 1) ** 0.8, int(rng.lognormvariate(7, 1))) for rank in range(rng.randrange(8, 20))]
    sizes = [nbytes for _, nbytes in models]
    room = max(*sizes, int(sum(sizes) * rng.uniform(0.3, 0.8)))
    assert expected(models, room).rate == pytest.approx(counted(models, room, calls=20_000, seed=seed), rel=0.2)


@given(swapped)
def test_nothing_is_loaded_where_all_fit(models):
    assert expected(models, sum(nbytes for _, nbytes in models)) == Reloads()


@given(swapped)
def test_every_call_loads_where_there_is_no_room(models):
    assert expected(models, 0).rate == pytest.approx(sum(rate * nbytes for rate, nbytes in models))


@given(swapped, st.floats(0, 1), st.floats(0, 1))
def test_less_room_never_means_fewer_reloads(models, one, other):
    held = sum(nbytes for _, nbytes in models)
    less, more = sorted((int(one * held), int(other * held)))
    assert expected(models, less).rate >= expected(models, more).rate * (1 - 1e-6)


def test_pinned_weights_and_code_take_room_and_are_never_reloaded():
    load = Load(WorkerCapacity("w", capacity_bytes=100), 0, compute_unit=1.0, memory_unit=0.0)
    load.add(ModelDemand("pinned", 30, code_bytes=10, rate=9.0, pinned=True), 0.0)
    load.add(ModelDemand("a", 40, rate=1.0), 0.0)
    assert reloads_of(load, lambda model: model.rate) == Reloads()
    more = ModelDemand("b", 40, rate=1.0)
    assert reloads_of(load, lambda model: model.rate, model=more) == expected([(1.0, 40), (1.0, 40)], 60)
    assert reloads_of(load, lambda model: model.rate, model=more, without=load.models["a"][0]) == Reloads()


def test_models_that_nobody_calls_are_never_reloaded():
    load = Load(WorkerCapacity("w", capacity_bytes=10), 0, compute_unit=1.0, memory_unit=0.0)
    for name in "abc":
        load.add(ModelDemand(name, 8), 0.0)
    assert reloads_of(load, lambda model: model.rate) == Reloads()


def test_a_model_brings_its_own_reloads_and_those_of_the_models_that_it_displaces():
    models = [(1.0, 40), (0.5, 40), (0.1, 40)]
    now = expected(models, 90)
    rare, busy = (now.brought(ModelDemand("new", 10), calls) for calls in (0.0, 5.0))
    assert rare == 0.0
    assert busy > 0.0
    assert Reloads().brought(ModelDemand("new", 10), 5.0) == 0.0
