# SPDX-License-Identifier: Apache-2.0
"""Why a model is where it is."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ballast_operator.placement.explaining import explain
from ballast_operator.placement.model import Affinity, ModelDemand, MovePrice, Packed, WorkerCapacity
from ballast_operator.placement.packing import pack

GB = 10**9
FLEET = [WorkerCapacity(f"w{n}", "n0" if n else "n1", 10 * GB) for n in range(3)]
MODELS = [
    ModelDemand("hot", 2 * GB, utilization=0.6),
    ModelDemand("warm", 3 * GB, utilization=0.5),
    ModelDemand("big", 9 * GB),
]
WHERE = {"hot": ("w0",), "warm": ("w1",), "big": ("w2",)}


def ask(name, models, where, price=None):
    return explain(name, Packed(models, FLEET, price=price or MovePrice()), where)


def test_each_worker_is_a_candidate_and_those_that_have_the_model_come_first():
    found = ask("warm", MODELS, WHERE)
    assert [c.worker for c in found] == ["w1", "w0", "w2"]
    assert [c.chosen for c in found] == [True, False, False]
    assert [c.affinity for c in found] == [Affinity.SERVES, Affinity.NONE, Affinity.NONE]


def test_scores_are_those_with_the_model_there_and_everything_else_where_it_is():
    here, busier, _ = ask("warm", MODELS, WHERE)
    assert here.score == pytest.approx(0.5)
    assert busier.score == pytest.approx(1.1)
    assert busier.held_bytes == 5 * GB


def test_a_model_that_stays_says_above_which_load_it_would_leave():
    here = ask("warm", MODELS, WHERE)[0]
    assert here.needs == "it leaves when this worker is above 1.21: 'w0', the best of the others, would be at 1.10"


def test_a_worker_that_is_not_chosen_says_what_would_bring_the_model_there():
    busier = ask("warm", MODELS, WHERE)[1]
    assert busier.needs == "a score below 0.45, or 'w1' above 1.21 (now 0.50)"


def test_a_worker_without_room_says_how_much_it_lacks():
    pinned = [*MODELS[:2], ModelDemand("big", 9 * GB, pinned=True)]
    full = ask("warm", pinned, WHERE)[2]
    assert not full.feasible
    assert full.needs.startswith("1.86 GiB more device memory")


def test_a_load_that_does_not_pay_is_said_with_both_figures():
    price = MovePrice(warm_bytes_per_second=GB, horizon_seconds=1.0)
    crowded = {**WHERE, "warm": ("w0",)}
    idle = next(c for c in ask("warm", MODELS, crowded, price=price) if c.worker == "w1")
    assert idle.load_seconds == pytest.approx(3.0)
    assert idle.needs == "a gain above 3 to pay for a load of 3 s (now 0.6)"


def test_a_better_place_is_announced():
    crowded = {**WHERE, "warm": ("w0",)}
    found = {c.worker: c.needs for c in ask("warm", MODELS, crowded)}
    assert found["w1"] == "nothing: the next repack may move it there"
    assert "the next repack may move it" in found["w0"]


def test_a_model_without_a_place_has_only_candidates():
    lone = [ModelDemand("huge", 20 * GB)]
    assert all(not c.chosen and not c.feasible for c in ask("huge", lone, {}))


def test_an_explanation_agrees_with_the_pack():
    packing = pack(MODELS, FLEET, {})
    for model in MODELS:
        found = ask(model.name, MODELS, packing.assignments)
        assert tuple(c.worker for c in found if c.chosen) == packing.placements[model.name].workers
        assert found[0].score == packing.loads[found[0].worker].score
        assert math.isclose(found[0].compute, packing.loads[found[0].worker].compute)


def test_reloads_are_estimated_where_models_take_turns_and_only_there():
    called = [dataclasses.replace(model, rate=1.0) for model in MODELS]
    assert all(c.reload_bytes_per_second is None for c in ask("warm", called, WHERE))
    more = [*called, *(ModelDemand(f"m{n}", 8 * GB, rate=0.1) for n in range(3))]
    where = WHERE | {f"m{n}": (f"w{n}",) for n in range(3)}
    here, *others = ask("warm", more, where)
    assert here.reload_bytes_per_second > 0
    assert here.needs.endswith("; or for fewer reloads")
    assert min(c.reload_bytes_per_second for c in others) > 0
