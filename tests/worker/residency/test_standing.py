# SPDX-License-Identifier: Apache-2.0
"""What residency does without being asked: pinned models, kept host copies, replaced bundles, filling free memory."""

from __future__ import annotations

import numpy as np
from helpers.plain_bundles import packed_bytes

from ballast_contract.reasons import Reason
from ballast_worker.bundle.errors import BundleError
from ballast_worker.residency.demand import Readiness
from ballast_worker.residency.protocol import Tier


def weights_of(worker, name):
    lease = worker.manager.lease(name)
    data = np.asarray(lease.arrays[0]).tobytes()
    lease.release()
    return data


def test_pinned_models_load_when_registered_the_largest_first(rig):
    worker = rig(20)
    for name, units in (("small", 2), ("large", 9), ("middle", 5)):
        worker.register(name, units, "device")
    worker.settle()
    extents = [extent.key.split("#")[0] for extent in worker.memory.extents()]
    assert extents == ["large", "middle", "small"]
    assert worker.memory.statistics().pinned == 16 * 4096
    assert worker.queues.refused_calls == []


def test_a_pinned_model_never_goes_for_another(rig):
    worker = rig(10)
    worker.register("p", 4, "device")
    worker.register("a", 6)
    worker.register("b", 6)
    worker.settle()
    worker.load("a", "b", "a")
    assert worker.residents() == {"p", "a"}
    assert worker.model("p").evictions == 0


def test_pinned_models_beyond_the_device_are_refused_one_by_one(rig):
    """Device use never exceeds the plan."""
    worker = rig(10)
    answers = [worker.register(f"p{i}", 4, "device") for i in range(4)]
    worker.settle()
    assert [answer and answer.reason for answer in answers] == [
        None,
        None,
        Reason.INSUFFICIENT_DEVICE_MEMORY,
        Reason.INSUFFICIENT_DEVICE_MEMORY,
    ]
    assert worker.residents() == {"p0", "p1"}


def test_a_pinned_model_takes_the_place_of_on_demand_ones(rig):
    worker = rig(10)
    worker.register("a", 8)
    worker.load("a")
    worker.register("p", 5, "device")
    worker.settle()
    assert worker.residents() == {"p"}


def test_a_pinned_model_whose_load_failed_is_loaded_later_without_being_called(rig):
    worker = rig(10)
    worker.register("p", 5, "device")
    worker.run()
    worker.loader.end_fetch(error=BundleError("SourceNotFound", "p: gone"))
    worker.run()
    assert worker.model("p").refusal.reason is Reason.SOURCE_NOT_FOUND
    worker.pass_time(1.5)
    worker.settle()
    assert worker.residents() == {"p"}
    assert worker.model("p").refusal is None


def test_a_pinned_model_that_was_forgotten_is_not_tried_again(rig):
    worker = rig(10)
    worker.register("p", 5, "device")
    worker.run()
    worker.loader.end_fetch(error=BundleError("SourceNotFound", "p: gone"))
    worker.run()
    worker.manager.forget("p", lambda: None)
    worker.register("p", 5)
    worker.pass_time(100)
    assert not worker.loader.fetches


def test_pinning_a_resident_model_keeps_it_and_unpinning_lets_it_go(rig):
    worker = rig(10)
    worker.register("a", 6)
    worker.register("b", 6)
    worker.load("a")
    worker.register("a", 6, "device")
    worker.settle()
    assert worker.memory.statistics().pinned == 6 * 4096
    assert worker.manager.want("b").reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    worker.register("a", 6)
    worker.now += 2
    worker.load("b")
    assert worker.residents() == {"b"}
    assert worker.manager.snapshot().loads == 2


def test_system_residency_gets_a_kept_host_copy_and_no_place_on_the_device(rig):
    worker = rig(10)
    worker.register("s", 5, "system")
    worker.settle()
    assert worker.store.kept == {worker.bundle("s", 5).manifest.weights.digest}
    assert worker.model("s").tier is Tier.HOST
    assert worker.memory.statistics().in_use == 0
    assert worker.store.open == 0


def test_leaving_system_residency_makes_the_copy_an_ordinary_one(rig):
    worker = rig(10)
    worker.register("s", 5, "system")
    worker.settle()
    worker.register("s", 5)
    assert worker.store.kept == set()
    worker.register("s", 5, "system")
    worker.settle()
    worker.manager.forget("s", lambda: None)
    assert worker.store.kept == set()


def test_a_system_copy_without_host_memory_is_refused_and_tried_again(rig):
    worker = rig(10)
    worker.store.full = True
    worker.register("s", 5, "system")
    worker.settle()
    assert worker.model("s").refusal.reason is Reason.INSUFFICIENT_HOST_MEMORY
    worker.store.full = False
    worker.pass_time(2)
    worker.settle()
    assert worker.model("s").tier is Tier.HOST
    assert worker.model("s").refusal is None


def test_requests_are_served_while_a_system_copy_cannot_be_kept(rig):
    worker = rig(10)
    worker.store.full = True
    worker.register("s", 5, "system")
    worker.settle()
    worker.load("s")
    assert worker.residents() == {"s"}
    worker.settle()
    assert worker.model("s").refusal.reason is Reason.INSUFFICIENT_HOST_MEMORY


def test_a_request_during_the_fetch_of_a_system_copy_loads_from_that_fetch(rig):
    worker = rig(10)
    worker.register("s", 5, "system")
    worker.run()
    assert worker.manager.want("s") is Readiness.LOADING
    worker.settle()
    assert worker.residents() == {"s"}
    assert worker.loader.fetched[worker.bundle("s", 5).digest] == 1


def test_free_memory_is_filled_largest_first_and_nothing_goes_for_it(rig):
    worker = rig(20)
    worker.register("p", 5, "device")
    for name, units in (("a", 3), ("b", 9), ("c", 8), ("d", 6), ("e", 1)):
        worker.register(name, units)
    worker.manager.fill_free()
    worker.settle()
    assert worker.residents() == {"p", "b", "d"}
    assert worker.manager.snapshot().evictions == 0
    assert worker.manager.snapshot().admission_failures == 0
    assert worker.model("c").refusal is None


def test_a_request_during_the_filling_is_answered_like_any_other(rig):
    worker = rig(10)
    worker.register("a", 8)
    worker.register("b", 6)
    worker.manager.fill_free()
    worker.run()
    worker.queues.waiting["b"] = 1
    assert worker.manager.want("b") is Readiness.LOADING
    worker.settle()
    assert worker.residents() == {"b"}


def test_a_new_bundle_loads_beside_the_old_one_which_serves_meanwhile(rig):
    worker = rig(20)
    worker.register("a", 5)
    worker.load("a")
    old, new = worker.bundle("a", 5), worker.bundle("a", 6, seed=1)
    worker.register("a", 6, seed=1)
    worker.run()
    worker.loader.end_fetch()
    worker.run()
    assert worker.manager.serving("a") is old
    assert worker.manager.want("a") is Readiness.READY
    assert weights_of(worker, "a") == packed_bytes(old)
    assert worker.model("a").digest == old.digest
    worker.settle()
    assert worker.manager.serving("a") is new
    assert weights_of(worker, "a") == packed_bytes(new)
    assert worker.memory.statistics().in_use == 6 * 4096
    assert worker.queues.loaded_calls == ["a", "a"]


def test_the_old_bundle_stays_for_executions_that_have_begun(rig):
    worker = rig(20)
    worker.register("a", 5)
    worker.load("a")
    lease = worker.manager.lease("a")
    before = np.asarray(lease.arrays[0]).tobytes()
    worker.register("a", 5, seed=1)
    worker.settle()
    assert worker.memory.statistics().in_use == 10 * 4096
    assert np.asarray(lease.arrays[0]).tobytes() == before
    lease.release()
    worker.run()
    assert worker.memory.statistics().in_use == 5 * 4096


def test_a_new_bundle_without_room_beside_the_old_one_takes_its_place_when_it_is_idle(rig):
    worker = rig(8)
    worker.register("a", 5, "device")
    worker.settle()
    lease = worker.manager.lease("a")
    worker.register("a", 6, "device", seed=1)
    worker.settle()
    assert worker.model("a").digest == worker.bundle("a", 5).digest
    assert worker.manager.want("a") is Readiness.LOADING
    lease.release()
    worker.settle()
    assert worker.model("a").digest == worker.bundle("a", 6, seed=1).digest
    assert worker.manager.want("a") is Readiness.READY


def test_a_new_bundle_that_cannot_be_read_leaves_the_old_one_serving_and_is_tried_again(rig):
    worker = rig(20)
    worker.register("a", 5)
    worker.load("a")
    worker.register("a", 5, seed=1)
    worker.run()
    worker.loader.end_fetch(error=BundleError("SourceChanged", "a: changed"))
    worker.run()
    assert worker.manager.want("a") is Readiness.READY
    assert worker.model("a").refusal.reason is Reason.SOURCE_CHANGED
    worker.pass_time(2)
    worker.settle()
    assert worker.model("a").digest == worker.bundle("a", 5, seed=1).digest


def test_a_bundle_replaced_while_it_loads_is_loaded_once_and_in_its_last_version(rig):
    worker = rig(20)
    worker.register("a", 5)
    worker.manager.want("a")
    worker.loader.end_fetch()
    worker.run()
    worker.register("a", 5, seed=1)
    worker.settle()
    assert worker.queues.loaded_calls == ["a"]
    assert worker.queues.refused_calls == []
    assert worker.model("a").digest == worker.bundle("a", 5, seed=1).digest
    assert worker.memory.statistics().in_use == 5 * 4096


def test_an_infeasible_new_bundle_is_refused_and_the_old_one_serves_on(rig):
    worker = rig(8)
    worker.register("a", 5)
    worker.load("a")
    assert worker.register("a", 9, seed=1).reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert worker.manager.serving("a") is worker.bundle("a", 5)
    assert worker.manager.want("a") is Readiness.READY
