# SPDX-License-Identifier: Apache-2.0
"""What holds for every pool: properties of packing, checked on random ones."""

from __future__ import annotations

import pytest
from helpers.packings import crowded, held, highest_score
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_contract.reasons import Reason
from ballast_operator.placement.model import ModelDemand, MovePrice, WorkerCapacity
from ballast_operator.placement.packing import pack
from ballast_operator.placement.plain import plain as plain_rule
from benchmarks.placement_policies import plain_lpt

NAMES = [f"m{number}" for number in range(6)]
RATES = st.sampled_from([0.0, 0.0, 0.5, 1.0, 20.0])
UTILIZATIONS = st.sampled_from([0.0, 0.05, 0.1, 0.1, 0.3, 0.9, 2.0])

demands = st.lists(
    st.builds(
        ModelDemand,
        name=st.sampled_from(NAMES),
        weights_bytes=st.integers(0, 12),
        code_bytes=st.integers(0, 2),
        utilization=UTILIZATIONS,
        rate=RATES,
        pinned=st.booleans(),
        replicas=st.integers(0, 4),
        all_workers=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda model: model.name,
)
fleets = st.integers(0, 4).flatmap(
    lambda count: st.tuples(
        *(
            st.builds(
                WorkerCapacity,
                name=st.just(f"w{number}"),
                node=st.sampled_from(["", "n0", "n1"]),
                capacity_bytes=st.none() | st.integers(1, 30),
                holds=st.frozensets(st.sampled_from(NAMES), max_size=3),
            )
            for number in range(count)
        )
    )
)
befores = st.dictionaries(
    st.sampled_from([*NAMES, "dropped"]),
    st.lists(st.sampled_from(["w0", "w1", "w2", "w3", "gone"]), unique=True, max_size=3).map(tuple),
)
examples = settings(max_examples=60)
hysteresis = st.integers(0, 99)
prices = st.builds(
    MovePrice,
    warm_bytes_per_second=st.none() | st.just(5.0),
    cold_bytes_per_second=st.none() | st.just(1.0),
    horizon_seconds=st.sampled_from([0.1, 1.0, 10.0, 1000.0]),
)
everywheres = st.booleans()


@examples
@given(demands, fleets, befores, hysteresis, everywheres, st.booleans(), st.randoms(use_true_random=False))
def test_the_answer_depends_on_the_arguments_alone(models, fleet, before, percent, everywhere, settled, rng):
    shuffled_models, shuffled_fleet = list(models), list(fleet)
    rng.shuffle(shuffled_models)
    rng.shuffle(shuffled_fleet)
    options = {"hysteresis_percent": percent, "everywhere": everywhere, "settled": settled}
    assert pack(models, fleet, before, **options) == pack(shuffled_models, shuffled_fleet, before, **options)


@examples
@given(demands, fleets, befores, hysteresis, everywheres, st.booleans())
def test_a_model_has_as_many_copies_as_wanted_or_a_reason(models, fleet, before, percent, everywhere, settled):
    packing = pack(models, fleet, before, hysteresis_percent=percent, everywhere=everywhere, settled=settled)
    assert packing.placements.keys() == {model.name for model in models}
    for model in models:
        placement = packing.placements[model.name]
        assert len(set(placement.workers)) == len(placement.workers)
        assert set(placement.workers) <= {worker.name for worker in fleet}
        if model.replicas == 0:
            wanted = 0
        elif everywhere or model.all_workers:
            wanted = len(fleet)
        else:
            wanted = min(model.replicas, len(fleet))
        assert placement.wanted == wanted
        if placement.reason is None:
            assert len(placement.workers) == wanted
        else:
            assert placement.message
        if placement.reason is Reason.INSUFFICIENT_DEVICE_MEMORY:
            assert len(placement.workers) < wanted


@examples
@given(demands, fleets, befores, hysteresis, everywheres, st.booleans())
def test_no_worker_gets_what_cannot_be_on_its_device_at_once(models, fleet, before, percent, everywhere, settled):
    packing = pack(models, fleet, before, hysteresis_percent=percent, everywhere=everywhere, settled=settled)
    for worker in fleet:
        if worker.capacity_bytes is None:
            continue
        here = [model for model in models if worker.name in packing.placements[model.name].workers]
        pinned = sum(model.weights_bytes for model in here if model.pinned)
        code = sum(model.code_bytes for model in here)
        largest = max((model.weights_bytes for model in here if not model.pinned), default=0)
        assert pinned + code + largest <= worker.capacity_bytes


@examples
@given(demands, fleets, befores, hysteresis)
def test_what_the_sums_say_is_what_was_placed(models, fleet, before, percent):
    packing = pack(models, fleet, before, hysteresis_percent=percent)
    for name, load in packing.loads.items():
        here = [model for model in models if name in packing.placements[model.name].workers]
        assert load.models == len(here)
        assert load.pinned_bytes == sum(m.weights_bytes for m in here if m.pinned)
        assert load.swapped_bytes == sum(m.weights_bytes for m in here if not m.pinned)
        assert load.code_bytes == sum(m.code_bytes for m in here)
        assert load.compute == pytest.approx(sum(m.utilization / len(packing.placements[m.name].workers) for m in here))


@examples
@given(demands, fleets, befores, hysteresis, everywheres, prices)
def test_a_pack_of_its_own_result_changes_nothing(models, fleet, before, percent, everywhere, price):
    options = {"hysteresis_percent": percent, "everywhere": everywhere, "price": price}
    first = pack(models, fleet, before, **options)
    again = pack(models, fleet, first.assignments, **options)
    assert again.assignments == first.assignments
    assert again.moved == ()
    assert again.changed_workers == ()


@examples
@given(demands, fleets, befores, hysteresis, everywheres)
def test_settling_moves_nothing_where_every_copy_has_a_worker(models, fleet, before, percent, everywhere):
    first = pack(models, fleet, before, hysteresis_percent=percent, everywhere=everywhere)
    if all(placement.reason is None for placement in first.placements.values()):
        extra = ModelDemand("new", 0, utilization=5.0)
        again = pack(
            [*models, extra], fleet, first.assignments, hysteresis_percent=percent, everywhere=everywhere, settled=True
        )
        assert again.moved == ()


def spread(packing):
    """The loads of a pool from the highest on: lower is better, in the order of lists."""
    return sorted((load.score for load in packing.loads.values()), reverse=True)


ample = st.tuples(*(st.builds(WorkerCapacity, name=st.just(f"w{n}"), capacity_bytes=st.just(400)) for n in range(4)))


@examples
@given(demands, demands, ample, hysteresis)
def test_models_move_only_for_a_better_spread(models, others, fleet, percent):
    """In a pool with room for everything, a repack either changes nothing for models that have their copies or improves it."""
    before = pack(models, fleet, {}).assignments
    stayed = pack(others, fleet, before, hysteresis_percent=percent, settled=True)
    repacked = pack(others, fleet, stayed.assignments, hysteresis_percent=percent)
    if repacked.moved:
        assert spread(repacked) < spread(stayed)


@examples
@given(demands, demands, ample, hysteresis)
def test_loads_within_the_hysteresis_of_each_other_move_no_model(models, others, fleet, percent):
    """Nothing moves where even the least loaded worker is within the hysteresis of the most loaded one, and that one is not
    above the plain rule's."""
    before = pack(models, fleet, {}).assignments
    stayed = pack(others, fleet, before, settled=True)
    loads = spread(stayed)
    plain = pack(others, fleet, plain_rule(others, fleet, everywhere=False), settled=True)
    if loads[0] <= loads[-1] * (1 + percent / 100) and highest_score(stayed) <= highest_score(plain):
        assert pack(others, fleet, stayed.assignments, hysteresis_percent=percent).moved == ()


even_demands = st.lists(
    st.builds(
        ModelDemand,
        name=st.sampled_from([f"m{number}" for number in range(12)]),
        weights_bytes=st.integers(0, 12),
        code_bytes=st.integers(0, 2),
        utilization=st.integers(0, 16).map(lambda number: number / 16),
        rate=RATES,
        pinned=st.sampled_from([False, False, False, True]),
        replicas=st.sampled_from([1, 1, 1, 2, 4]),
    ),
    max_size=12,
    unique_by=lambda model: model.name,
)
"""Sums of these and their halves are exact, so that equal loads are equal however they are added up."""

COUNTS = st.sampled_from([1, 2, 4])


def even_fleet(count, capacity):
    return [WorkerCapacity(f"w{number}", capacity_bytes=capacity) for number in range(count)]


sized_fleets = st.builds(even_fleet, COUNTS, st.integers(12, 60))
even_fleets = sized_fleets | st.builds(even_fleet, COUNTS, st.none())


def rank(packing):
    """What packing goes by: copies that are left out, whether a worker is crowded though everything might fit, the peak."""
    whole = sum(held(load) for load in packing.loads.values())
    room = sum(load.capacity_bytes or 0 for load in packing.loads.values())
    missing = sum(placement.wanted - len(placement.workers) for placement in packing.placements.values())
    return missing, whole <= room and crowded(packing), highest_score(packing)


@examples
@given(even_demands, even_fleets, befores, hysteresis)
def test_no_pack_is_worse_than_the_plain_rule(models, fleet, before, percent):
    """Where the plain rule's can be served at all: it takes no heed of what is pinned."""
    where = plain_lpt()(models, fleet, {}, MovePrice())
    plain = pack(models, fleet, where, settled=True)
    if plain.assignments == where:
        assert rank(pack(models, fleet, {}, hysteresis_percent=percent)) <= rank(plain)
        assert rank(pack(models, fleet, before, hysteresis_percent=percent)) <= rank(plain)


@examples
@given(even_demands, sized_fleets)
def test_the_plain_rule_is_that_of_the_first_system(models, fleet):
    where = plain_lpt()(models, fleet, {}, MovePrice())
    if pack(models, fleet, where, settled=True).assignments == where:
        assert plain_rule(models, fleet, everywhere=False) == where


@examples
@given(demands, ample, st.floats(1e-6, 1e-3))
def test_nothing_moves_that_does_not_pay_for_its_load(models, fleet, horizon):
    before = {model.name: ("w0",) for model in models}
    dear = MovePrice(warm_bytes_per_second=1e-6, horizon_seconds=horizon)
    moved = pack(models, fleet, before, price=dear).moved
    weightless = {model.name for model in models if model.weights_bytes == 0}
    wanting = {model.name for model in models if model.replicas != 1 or model.all_workers}
    assert set(moved) <= weightless | wanting
