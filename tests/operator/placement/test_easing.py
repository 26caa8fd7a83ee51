# SPDX-License-Identifier: Apache-2.0
"""Fewer reloads, in pools whose models take turns on the devices."""

from __future__ import annotations

import dataclasses
import random

from helpers.packings import held, highest_score

from ballast_operator.placement.board import Board
from ballast_operator.placement.easing import Easing
from ballast_operator.placement.model import ModelDemand, MovePrice, WorkerCapacity
from ballast_operator.placement.packing import pack

FREE = MovePrice()


def fleet(count, capacity):
    return [WorkerCapacity(f"w{number}", capacity_bytes=capacity) for number in range(count)]


def board(models, workers, where, *, served=True):
    found = Board(models, workers, where if served else {}, everywhere=False)
    found.put_all(where)
    return found


HOT = [ModelDemand(f"hot{n}", 10, utilization=0.1, rate=10.0) for n in range(4)]
COLD = [ModelDemand(f"cold{n}", 20, utilization=0.1, rate=3.0) for n in range(4)]
MIXED = {model.name: ("w0",) for model in HOT[:3] + COLD[:1]} | {model.name: ("w1",) for model in HOT[3:] + COLD[1:]}
"""More than two workers of 40 can hold; the four that are called often would fit on one."""


def apart(assignments):
    return len({assignments[model.name] for model in HOT}) == 1


def test_models_that_are_called_often_go_where_all_of_them_fit():
    mixed = board(HOT + COLD, fleet(2, 40), MIXED)
    search = Easing(mixed, price=FREE, ceiling=mixed.peak)
    before = search.rate
    search.run()
    assert search.rate < before * 0.7
    assert apart(mixed.assignments())


def test_no_worker_is_loaded_above_the_ceiling():
    for seed in range(20):
        rng = random.Random(seed)
        models = [
            ModelDemand(f"m{n}", rng.randrange(1, 40), utilization=rng.random() / 10, rate=rng.random() ** 4 * 50)
            for n in range(30)
        ]
        mixed = board(models, fleet(4, 60), {model.name: (f"w{n % 4}",) for n, model in enumerate(models)})
        ceiling = mixed.peak * rng.choice([1.0, 1.1])
        search = Easing(mixed, price=FREE, ceiling=ceiling)
        before = search.rate
        search.run()
        assert mixed.peak <= ceiling
        assert search.rate < before


def test_nothing_moves_that_does_not_pay_for_its_load():
    dear = MovePrice(warm_bytes_per_second=1.0, horizon_seconds=0.01)
    mixed = board(HOT + COLD, fleet(2, 40), MIXED)
    Easing(mixed, price=dear, ceiling=mixed.peak).run()
    assert mixed.assignments() == MIXED
    unserved = board(HOT + COLD, fleet(2, 40), MIXED, served=False)
    Easing(unserved, price=dear, ceiling=mixed.peak).run()
    assert apart(unserved.assignments())


def test_a_repack_parts_models_that_are_called_often_from_those_that_are_not():
    packing = pack(HOT + COLD, fleet(2, 40), MIXED)
    assert apart(packing.assignments)
    assert highest_score(packing) == highest_score(pack(HOT + COLD, fleet(2, 40), MIXED, settled=True))


def test_models_stay_where_reloads_would_not_fall_by_more_than_the_hysteresis():
    alike = [dataclasses.replace(model, rate=1.0 + n / 100) for n, model in enumerate(HOT + COLD)]
    assert pack(alike, fleet(2, 40), MIXED).moved == ()


def test_bytes_are_spread_where_the_calls_are_not_known():
    unknown = [ModelDemand(model.name, model.weights_bytes, utilization=0.1) for model in HOT + COLD]
    assert [held(load) for load in pack(unknown, fleet(2, 40), MIXED).loads.values()] == [60, 60]


def test_models_that_are_called_seldom_share_the_worker_of_one_that_keeps_it_busy():
    giant = ModelDemand("giant", 1, utilization=0.9, rate=100.0)
    others = [ModelDemand(f"m{n}", 9, utilization=0.02, rate=1.0) for n in range(12)]
    packing = pack([giant, *others], fleet(3, 30), {})
    busiest = max(packing.loads.values(), key=lambda load: load.compute)
    assert busiest.models > 1
    assert busiest.compute <= 0.9 * 1.1
