# SPDX-License-Identifier: Apache-2.0
"""Models to workers: who goes where, and why; the numbers of the first system's tests where they still apply."""

from __future__ import annotations

import random

import pytest

from ballast_contract.reasons import Reason
from ballast_operator.placement.model import Affinity, ModelDemand, WorkerCapacity
from ballast_operator.placement.packing import RUNNERS_UP, pack

GB = 10**9


def workers(count, capacity=None):
    return [WorkerCapacity(f"w{number}", capacity_bytes=capacity) for number in range(count)]


def models(**utilization):
    return [ModelDemand(name, 0, utilization=u) for name, u in utilization.items()]


def placed(packing):
    return {name: placement.workers for name, placement in packing.placements.items()}


def test_the_busiest_goes_first_and_each_to_the_least_loaded():
    packing = pack(models(a=0.5, b=0.4, c=0.1), workers(2), {})
    assert placed(packing) == {"a": ("w0",), "b": ("w1",), "c": ("w1",)}
    assert packing.loads["w1"].compute == pytest.approx(0.5)


def test_one_model_busier_than_a_worker_still_gets_one_copy():
    assert placed(pack(models(hot=1.5), workers(3), {})) == {"hot": ("w0",)}


@pytest.mark.parametrize(("replicas", "copies"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_replicas_go_to_different_workers_and_share_the_load(replicas, copies):
    placement = pack([ModelDemand("m", 1, utilization=0.9, replicas=replicas)], workers(3), {}).placements["m"]
    assert len(set(placement.workers)) == len(placement.workers) == copies
    assert placement.share == pytest.approx(0.9 / copies if copies else 0.0)
    assert placement.reason is None


def test_every_copy_pays_its_full_bytes():
    packing = pack([ModelDemand("m", 6 * GB, utilization=0.9, replicas=2)], workers(2, 10 * GB), {})
    assert [load.swapped_bytes for load in packing.loads.values()] == [6 * GB, 6 * GB]


def test_all_workers_covers_every_worker_cold_models_included():
    cold = ModelDemand("cold", 1, all_workers=True)
    assert placed(pack([cold, *models(a=0.5)], workers(3), {}))["cold"] == ("w0", "w1", "w2")


def test_mode_all_puts_every_served_model_on_every_worker():
    packing = pack([*models(a=0.5, b=0.1), ModelDemand("off", 1, replicas=0)], workers(2), {}, mode="all")
    assert placed(packing) == {"a": ("w0", "w1"), "b": ("w0", "w1"), "off": ()}


def test_memory_counts_beside_compute():
    demands = [
        ModelDemand("a", 1 * GB, utilization=0.6),
        ModelDemand("b", 9 * GB, utilization=0.5),
        ModelDemand("c", 9 * GB, utilization=0.1),
    ]
    assert placed(pack(demands, workers(2, None), {}))["c"] == ("w1",)
    assert placed(pack(demands, workers(2, 10 * GB), {})) == {"a": ("w1",), "b": ("w0",), "c": ("w1",)}


@pytest.mark.parametrize("capacity", [None, 0, 1000 * GB])
def test_memory_without_a_limit_decides_nothing(capacity):
    demands = [
        ModelDemand("a", 1 * GB, utilization=0.6),
        ModelDemand("b", 9 * GB, utilization=0.5),
        ModelDemand("c", 9 * GB, utilization=0.1),
    ]
    assert placed(pack(demands, workers(2, capacity), {})) == {"a": ("w0",), "b": ("w1",), "c": ("w1",)}


def test_cold_models_spread_by_memory():
    packing = pack([ModelDemand("a", 6 * GB), ModelDemand("b", 6 * GB)], workers(2, 10 * GB), {})
    assert placed(packing) == {"a": ("w0",), "b": ("w1",)}


def test_an_incumbent_wins_a_tie():
    assert placed(pack(models(m=0.5), workers(2), {"m": ("w1",)})) == {"m": ("w1",)}


def test_a_model_leaves_its_worker_when_another_is_better_by_more_than_the_hysteresis():
    packing = pack(models(hot=0.7, a=0.3), workers(2), {"hot": ("w1",), "a": ("w1",)})
    assert placed(packing) == {"hot": ("w1",), "a": ("w0",)}
    assert packing.moved == ("a",)
    assert packing.changed_workers == ("w0", "w1")


def test_a_model_stays_within_the_hysteresis():
    demands = models(x=0.50, y=0.46, m=0.40)
    before = {"x": ("w0",), "y": ("w1",), "m": ("w0",)}
    assert placed(pack(demands, workers(2), before, hysteresis_percent=10))["m"] == ("w0",)
    assert placed(pack(demands, workers(2), before, hysteresis_percent=0))["m"] == ("w1",)


def test_a_worker_that_is_gone_is_passed_over():
    packing = pack(models(m=0.5), workers(2), {"m": ("gone",)})
    assert placed(packing) == {"m": ("w0",)}
    assert packing.changed_workers == ("gone", "w0")


def test_a_worker_that_holds_a_copy_wins_a_tie_and_its_node_comes_next():
    fleet = [
        WorkerCapacity("w0", node="n0"),
        WorkerCapacity("w1", node="n1"),
        WorkerCapacity("w2", node="n1", holds=frozenset({"m"})),
    ]
    both = [ModelDemand("m", 1, replicas=2)]
    assert placed(pack(models(m=0.0), fleet, {})) == {"m": ("w2",)}
    packing = pack(both, fleet, {})
    assert placed(packing) == {"m": ("w1", "w2")}
    assert [c.affinity for c in packing.placements["m"].candidates] == [
        Affinity.HOLDS,
        Affinity.NODE_HOLDS,
        Affinity.NONE,
    ]


def test_a_model_that_fits_elsewhere_does_not_crowd_a_worker():
    demands = [
        ModelDemand("big", 7 * GB, utilization=0.1),
        ModelDemand("other", 1 * GB, utilization=0.9),
        ModelDemand("m", int(3.5 * GB), utilization=0.05),
    ]
    packing = pack(demands, workers(2, 10 * GB), {"big": ("w0",), "m": ("w0",), "other": ("w1",)})
    assert placed(packing)["big"] == ("w0",)
    assert placed(packing)["m"] == ("w1",)
    assert not any(load.oversubscribed for load in packing.loads.values())


def test_what_fits_nowhere_whole_is_placed_last_and_said_to_be_swapped():
    demands = [ModelDemand(name, 6 * GB, utilization=u) for name, u in (("a", 0.9), ("b", 0.8), ("c", 0.7))]
    small = ModelDemand("small", 4 * GB, utilization=0.1)
    packing = pack([*demands, small], workers(2, 10 * GB), {})
    assert placed(packing)["small"] in {("w0",), ("w1",)}
    assert not packing.placements["small"].oversubscribed
    crowded = packing.placements["c"]
    assert crowded.oversubscribed
    assert crowded.reason is None
    assert "c is swapped on" in crowded.message


def test_a_model_larger_than_every_worker_is_refused_with_both_figures():
    placement = pack([ModelDemand("huge", 20 * GB)], workers(2, 10 * GB), {}).placements["huge"]
    assert placement.workers == ()
    assert placement.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert "18.6 GiB of device memory" in placement.message
    assert "has 9.31 GiB in all" in placement.message
    assert "raise device.budget" in placement.message


def test_pinned_weights_and_code_leave_room_for_the_largest_swapped_model():
    pinned = ModelDemand("pinned", 7 * GB, utilization=0.9, pinned=True, code_bytes=1 * GB)
    swapped = ModelDemand("swapped", 3 * GB, utilization=0.1)
    packing = pack([pinned, swapped], workers(1, 10 * GB), {})
    assert placed(packing) == {"pinned": ("w0",), "swapped": ()}
    assert packing.placements["swapped"].reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert placed(pack([pinned, swapped], workers(1, 11 * GB), {})) == {"pinned": ("w0",), "swapped": ("w0",)}


def test_pinned_models_go_before_busy_ones_that_would_take_their_room():
    demands = [
        ModelDemand("a", 5 * GB, utilization=0.9),
        ModelDemand("b", 5 * GB, utilization=0.8),
        ModelDemand("pinned", 8 * GB, utilization=0.1, pinned=True),
    ]
    packing = pack(demands, workers(2, 10 * GB), {})
    assert placed(packing) == {"a": ("w1",), "b": ("w1",), "pinned": ("w0",)}
    assert all(placement.reason is None for placement in packing.placements.values())


def test_a_model_that_needs_most_of_a_worker_goes_before_pinned_ones_that_would_spread():
    demands = [
        ModelDemand("wide", 8 * GB, utilization=0.1),
        ModelDemand("p", 3 * GB, utilization=0.9, pinned=True),
        ModelDemand("q", 3 * GB, utilization=0.8, pinned=True),
    ]
    packing = pack(demands, workers(2, 10 * GB), {})
    assert placed(packing) == {"wide": ("w0",), "p": ("w1",), "q": ("w1",)}


def test_a_copy_that_finds_no_room_is_counted_in_the_message():
    fleet = [WorkerCapacity("w0", capacity_bytes=10 * GB), WorkerCapacity("w1", capacity_bytes=1 * GB)]
    placement = pack([ModelDemand("m", 5 * GB, replicas=2)], fleet, {}).placements["m"]
    assert placement.workers == ("w0",)
    assert placement.wanted == 2
    assert placement.message.startswith("1 of 2 copies have a worker")
    assert "'w1'" in placement.message


def test_without_workers_a_model_waits():
    placement = pack(models(m=0.5), [], {"m": ("gone",)}).placements["m"]
    assert placement.reason is Reason.WORKERS_STARTING
    assert pack(models(m=0.5), [], {"m": ("gone",)}).changed_workers == ("gone",)


def test_a_model_of_no_copies_waits_for_nothing():
    placement = pack([ModelDemand("m", 1, replicas=0)], workers(1), {"m": ("w0",)}).placements["m"]
    assert placement.workers == ()
    assert placement.reason is None


def test_settled_models_stay_and_only_the_others_are_placed():
    demands = models(hot=0.7, a=0.3, new=0.1)
    before = {"hot": ("w1",), "a": ("w1",)}
    packing = pack(demands, workers(2), before, settled=True)
    assert placed(packing) == {"hot": ("w1",), "a": ("w1",), "new": ("w0",)}
    assert packing.moved == ()
    assert packing.changed_workers == ("w0",)


@pytest.mark.parametrize("before", [("w0",), ("w0", "gone"), ("w0", "w1", "w2")])
def test_a_model_with_too_few_or_too_many_copies_is_not_settled(before):
    packing = pack([ModelDemand("m", 1, replicas=2)], workers(3), {"m": before}, settled=True)
    assert placed(packing) == {"m": ("w0", "w1")}


def test_a_settled_model_that_does_not_fit_any_more_is_placed_again():
    demands = [ModelDemand("pinned", 9 * GB, pinned=True), ModelDemand("m", 5 * GB)]
    packing = pack(demands, workers(2, 10 * GB), {"pinned": ("w0",), "m": ("w0",)}, settled=True)
    assert placed(packing) == {"m": ("w1",), "pinned": ("w0",)}


def test_workers_of_a_dropped_model_have_changed():
    packing = pack([], workers(2), {"gone": ("w1",)})
    assert packing.changed_workers == ("w1",)
    assert packing.moved == ()


def test_an_answer_explains_itself():
    candidates = pack(models(a=0.5, b=0.4), workers(8), {}).placements["b"].candidates
    assert [c.worker for c in candidates] == ["w1", "w2", "w3", "w4"]
    assert [c.chosen for c in candidates] == [True] + [False] * RUNNERS_UP
    assert candidates[0].score == pytest.approx(0.4)


def test_the_order_of_the_arguments_does_not_matter():
    rng = random.Random(7)
    demands = [ModelDemand(f"m{n}", rng.randrange(9 * GB), utilization=rng.random()) for n in range(40)]
    fleet = workers(7, 20 * GB)
    expected = pack(demands, fleet, {})
    for _ in range(5):
        rng.shuffle(demands)
        rng.shuffle(fleet)
        assert pack(demands, fleet, {}) == expected


def test_idle_models_spread_over_workers_whose_memory_is_not_known_yet():
    demands = [ModelDemand(name, size * GB) for name, size in (("a", 3), ("b", 2), ("c", 1))]
    assert placed(pack(demands, workers(2, None), {})) == {"a": ("w0",), "b": ("w1",), "c": ("w1",)}
