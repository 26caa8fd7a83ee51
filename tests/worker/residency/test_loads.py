# SPDX-License-Identifier: Apache-2.0
"""Loads on request: what is loaded, what goes for it, and what happens when it fails."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.plain_bundles import packed_bytes

from ballast_contract.reasons import Reason
from ballast_worker.bundle.errors import BundleError
from ballast_worker.device.backend import DeviceLostError
from ballast_worker.device.memory import DeviceMemoryError
from ballast_worker.residency.demand import Readiness
from ballast_worker.residency.protocol import Tier


def test_the_first_request_loads_the_model_and_its_weights_are_right(rig):
    worker = rig(10)
    worker.register("a", 4)
    assert worker.manager.want("a") is Readiness.LOADING
    worker.settle(load_seconds=0.25)
    assert worker.queues.loaded_calls == ["a"]
    assert worker.manager.want("a") is Readiness.READY
    lease = worker.manager.lease("a")
    assert np.asarray(lease.arrays[0]).tobytes() == packed_bytes(worker.bundle("a", 4))
    lease.release()
    snapshot = worker.manager.snapshot()
    assert (snapshot.loads, snapshot.load_bytes, snapshot.load_seconds) == (1, 4 * 4096, pytest.approx(0.25))
    assert worker.model("a").load_seconds == pytest.approx(0.25)


def test_a_request_for_a_resident_model_loads_and_evicts_nothing(rig):
    worker = rig(10)
    worker.register("a", 4)
    worker.load("a")
    worker.execute("a")
    assert worker.manager.want("a") is Readiness.READY
    assert (worker.manager.snapshot().loads, worker.manager.snapshot().evictions) == (1, 0)


def test_asking_twice_begins_one_load_and_answers_once(rig):
    worker = rig(10)
    worker.register("a", 4)
    worker.manager.want("a")
    worker.manager.want("a")
    worker.settle()
    assert worker.loader.fetched[worker.bundle("a", 4).digest] == 1
    assert worker.queues.loaded_calls == ["a"]


def test_a_model_for_which_there_is_no_room_takes_that_of_another(rig):
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 4)
    worker.load("a")
    worker.load("b")
    snapshot = worker.manager.snapshot()
    assert (snapshot.loads, snapshot.evictions) == (2, 1)
    assert worker.residents() == {"b"}
    assert worker.model("a").tier is Tier.HOST
    assert worker.model("a").evictions == 1


def test_one_of_twelve_equals_goes_for_a_thirteenth(rig):
    """kserve/modelmesh-serving#455."""
    worker = rig(12 * 5)
    for i in range(13):
        worker.register(f"m{i}", 5)
    for i in range(12):
        worker.load(f"m{i}")
        worker.execute(f"m{i}")
        worker.now += 1.0
    worker.load("m12")
    assert worker.manager.snapshot().evictions == 1
    assert worker.residents() == {f"m{i}" for i in range(1, 13)}
    assert worker.free() == 0


def test_one_large_idle_model_goes_in_place_of_two_small_busy_ones(rig):
    worker = rig(180)
    for name, units in (("idle", 100), ("busy1", 40), ("busy2", 40), ("new", 80)):
        worker.register(name, units)
    worker.load("idle", "busy1", "busy2")
    for _ in range(20):
        worker.execute("busy1")
        worker.execute("busy2")
    worker.load("new")
    assert worker.residents() == {"busy1", "busy2", "new"}


def test_a_model_with_requests_stays_when_an_idle_one_frees_enough(rig):
    worker = rig(10)
    for name in ("queued", "idle", "new"):
        worker.register(name, 5)
    worker.load("queued")
    worker.execute("queued")
    worker.now += 100.0
    worker.load("idle")
    for _ in range(50):
        worker.execute("idle")
    worker.now += 10.0
    worker.queues.waiting["queued"] = 3
    worker.load("new")
    assert worker.residents() == {"queued", "new"}


def test_the_decision_has_every_candidate_and_who_went(rig):
    worker = rig(10)
    for name in ("a", "b", "c"):
        worker.register(name, 5)
    worker.register("p", 0, "device")
    worker.load("a")
    worker.pass_time(1.0)
    worker.load("b")
    worker.load("c")
    decision = worker.manager.decisions()[0]
    assert (decision.model, decision.kind, decision.verdict) == ("c", "load", "admittedAfterEviction")
    assert (decision.needed, decision.free, decision.evicted) == (5 * 4096, 0, ("a",))
    by_name = {candidate.model: candidate for candidate in decision.candidates}
    assert by_name["a"].chosen
    assert not by_name["b"].chosen
    assert by_name["a"].priority < by_name["b"].priority
    assert by_name["p"].excluded == "pinned"
    assert [d.sequence for d in worker.manager.decisions()] == [4, 3, 2, 1]


def test_only_the_last_decisions_are_kept(rig):
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 4)
    for _ in range(200):
        worker.load("a")
        worker.load("b")
    decisions = worker.manager.decisions()
    assert len(decisions) == 256
    assert decisions[0].sequence == 400


def test_what_can_never_fit_is_refused_at_registration_and_nothing_goes(rig):
    worker = rig(10)
    worker.register("a", 4)
    worker.load("a")
    refusal = worker.register("big", 11)
    assert refusal.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    snapshot = worker.manager.snapshot()
    assert (snapshot.admission_failures, snapshot.evictions) == (1, 0)
    assert worker.manager.want("big").reason is Reason.NOT_REQUESTED


def test_what_no_longer_fits_beside_a_model_pinned_later_is_refused_when_called(rig):
    worker = rig(10)
    worker.register("a", 6)
    worker.register("p", 5, "device")
    worker.settle()
    refusal = worker.manager.want("a")
    assert refusal.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert worker.residents() == {"p"}
    failures = worker.manager.snapshot().admission_failures
    assert worker.manager.want("a") == refusal
    assert worker.manager.snapshot().admission_failures == failures


def test_a_load_that_waits_is_refused_when_pinning_makes_it_infeasible(rig):
    worker = rig(10)
    worker.register("a", 6)
    worker.register("b", 6)
    worker.load("a")
    lease = worker.manager.lease("a")
    worker.manager.want("b")
    worker.settle()
    worker.register("p", 4, "device")
    worker.settle()
    worker.register("q", 2, "device")
    lease.release()
    worker.pass_time(1)
    worker.settle()
    assert [name for name, _ in worker.queues.refused_calls] == ["b"]
    assert worker.residents() == {"p", "q"}


def test_scratch_beyond_the_pool_is_refused(rig):
    worker = rig(10, scratch_limit=100)
    assert worker.register("a", 1, scratch=101).reason is Reason.SCRATCH_EXCEEDS_POOL


def test_a_failed_upload_leaves_the_device_bytes_as_they_were(rig):
    worker = rig(10)
    worker.register("a", 9)
    worker.store.fail_chunk = 2
    before = worker.memory.statistics()
    worker.manager.want("a")
    worker.settle()
    assert worker.memory.statistics() == before
    assert [name for name, _ in worker.queues.refused_calls] == ["a"]
    refusal = worker.queues.refused_calls[0][1]
    assert refusal.reason is Reason.LOAD_FAILED_WILL_RETRY
    assert "the source failed in the middle" in refusal.message
    assert worker.store.open == 0


def test_victims_of_a_failed_load_are_counted_and_named(rig):
    worker = rig(10)
    worker.register("a", 9)
    worker.register("b", 9)
    worker.load("a")
    worker.store.fail_chunk = 1
    worker.manager.want("b")
    worker.settle()
    assert worker.manager.snapshot().evictions == 1
    assert "1 had gone for it: a" in worker.queues.refused_calls[0][1].message
    assert worker.manager.decisions()[0].evicted == ("a",)
    assert worker.free() == 10


def test_a_source_that_cannot_be_read_costs_nobody_their_place(rig):
    worker = rig(10)
    worker.register("a", 9)
    worker.register("b", 9)
    worker.load("a")
    worker.manager.want("b")
    worker.loader.end_fetch(error=BundleError("SourceChanged", "b: weights were written to while they were read"))
    worker.run()
    assert worker.residents() == {"a"}
    assert worker.queues.refused_calls[0][1].reason is Reason.SOURCE_CHANGED


def test_failed_loads_are_tried_again_at_growing_intervals_and_refused_meanwhile(rig):
    """No hot loop."""
    worker = rig(10)
    worker.register("a", 1)
    error = BundleError("SourceNotFound", "a: gone")
    pauses = []
    for _ in range(8):
        assert worker.manager.want("a") is Readiness.LOADING
        worker.loader.end_fetch(error=error)
        worker.run()
        refusal = worker.manager.want("a")
        assert refusal.reason is Reason.SOURCE_NOT_FOUND
        pauses.append(round(refusal.retry_after_seconds))
        worker.now += refusal.retry_after_seconds
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_an_invalid_bundle_is_not_tried_again_until_it_is_registered_anew(rig):
    worker = rig(10)
    worker.register("a", 1)
    worker.manager.want("a")
    worker.loader.end_fetch(error=BundleError("BundleInvalid", "a: digest differs"))
    worker.run()
    worker.now += 1e6
    assert worker.manager.want("a").reason is Reason.BUNDLE_INVALID
    worker.register("a", 1)
    assert worker.manager.want("a").reason is Reason.BUNDLE_INVALID
    worker.register("a", 1, seed=1)
    worker.load("a")


def test_a_success_clears_the_failure(rig):
    worker = rig(10)
    worker.register("a", 1)
    worker.manager.want("a")
    worker.loader.end_fetch(error=BundleError("SourceNotFound", "a: gone"))
    worker.run()
    assert worker.model("a").refusal is not None
    worker.now += 10
    worker.load("a")
    assert worker.model("a").refusal is None


def test_different_models_are_fetched_at_the_same_time_and_each_once(rig):
    """ray-project/ray#65346."""
    worker = rig(8)
    for name in "abc":
        worker.register(name, 4)
        worker.manager.want(name)
        worker.manager.want(name)
    assert len(worker.loader.fetches) == 3


def test_a_model_just_loaded_is_kept_until_its_waiter_has_run(rig):
    """Three models, room for two, all asked for at once. ray-project/ray#65825."""
    worker = rig(8)
    for name in "abc":
        worker.register(name, 4)
        worker.queues.waiting[name] = 1
        worker.manager.want(name)
    worker.settle()
    assert worker.residents() == {"a", "b"}
    assert worker.queues.loaded_calls == ["a", "b"]
    worker.pass_time(60)
    assert worker.residents() == {"a", "b"}
    worker.queues.waiting["a"] = 0
    worker.execute("a")
    worker.settle()
    worker.pass_time(1)
    worker.settle()
    assert worker.residents() == {"b", "c"}


def test_a_model_whose_waiter_has_given_up_is_kept_no_longer(rig):
    worker = rig(4)
    for name in "ab":
        worker.register(name, 4)
        worker.queues.waiting[name] = 1
        worker.manager.want(name)
    worker.settle()
    assert worker.residents() == {"a"}
    worker.queues.waiting["a"] = 0
    worker.pass_time(1)
    worker.settle()
    assert worker.residents() == {"b"}


def test_a_load_waits_for_an_execution_and_the_running_model_gets_no_new_one(rig):
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 4)
    worker.load("a")
    worker.execute("a")
    worker.pass_time(60)
    lease = worker.manager.lease("a")
    worker.queues.waiting["a"] = 5
    worker.manager.want("b")
    worker.settle()
    assert worker.residents() == {"a"}
    assert worker.manager.want("a") is Readiness.LOADING
    with pytest.raises(DeviceMemoryError, match="ask `want` first"):
        worker.manager.lease("a")
    lease.release()
    worker.queues.waiting["b"] = 1
    worker.settle()
    assert worker.residents() == {"b"}
    # The requests that were held back are loaded for in turn.
    worker.queues.waiting["b"] = 0
    worker.execute("b")
    worker.pass_time(1)
    worker.settle()
    assert worker.residents() == {"a"}
    assert worker.queues.loaded_calls == ["a", "b", "a"]


def test_a_model_held_back_for_a_load_that_fails_after_all_runs_on(rig):
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 4)
    worker.load("a")
    worker.execute("a")
    worker.pass_time(60)
    lease = worker.manager.lease("a")
    worker.manager.want("b")
    worker.settle()
    assert worker.manager.want("a") is Readiness.LOADING
    worker.manager.forget("b", lambda: None)
    worker.run()
    assert worker.queues.loaded_calls == ["a", "a"]
    assert worker.manager.want("a") is Readiness.READY
    lease.release()


def test_large_loads_are_not_overtaken_for_ever_by_small_ones(rig):
    worker = rig(10)
    worker.register("running", 6)
    worker.register("large", 8)
    for i in range(4):
        worker.register(f"small{i}", 1)
    worker.load("running")
    lease = worker.manager.lease("running")
    worker.manager.want("large")
    worker.settle()
    for i in range(4):
        worker.manager.want(f"small{i}")
        worker.settle()
    assert worker.residents() == {"running"}
    lease.release()
    worker.settle()
    worker.pass_time(1)
    worker.settle()
    assert worker.queues.loaded_calls[:2] == ["running", "large"]


def test_the_largest_waiting_load_is_reported(rig):
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 3)
    worker.load("a")
    lease = worker.manager.lease("a")
    worker.manager.want("b")
    worker.settle()
    assert worker.manager.snapshot().largest_waiting_bytes == 3 * 4096
    lease.release()
    worker.settle()
    worker.pass_time(1)
    worker.settle()
    assert worker.manager.snapshot().largest_waiting_bytes == 0


def test_two_models_that_do_not_fit_together_swap_a_few_times_a_second_and_every_request_runs(rig):
    """A B A A B A at 5/s for 60 s, loads of half a second. kserve/modelmesh-serving#341, mostlygeek/llama-swap#612."""
    worker = rig(4)
    worker.register("a", 4)
    worker.register("b", 4)
    load_seconds, answered, longest = 0.5, 0, 0.0
    arrivals = [(1000.0 + i * 0.2, "abaaba"[i % 6]) for i in range(300)]
    queues = {"a": [], "b": []}
    filling_until = None
    while answered < 300:
        while arrivals and arrivals[0][0] <= worker.now:
            at, name = arrivals.pop(0)
            queues[name].append(at)
            worker.queues.waiting[name] += 1
        while worker.loader.fetches:
            worker.loader.end_fetch()
            worker.run()
        if worker.loader.fills and filling_until is None:
            filling_until = worker.now + load_seconds
        if filling_until is not None and worker.now >= filling_until:
            filling_until = None
            worker.loader.end_fill(seconds=load_seconds)
            worker.run()
        for name, waiting in queues.items():
            if waiting and worker.manager.want(name) is Readiness.READY:
                lease = worker.manager.lease(name)
                answered += len(waiting)
                longest = max(longest, worker.now - waiting[0])
                worker.queues.waiting[name] = 0
                waiting.clear()
                lease.release()
                worker.manager.dispatched(name)
            worker.run()
        worker.pass_time(0.01)
    seconds = worker.now - 1000.0
    assert not worker.queues.refused_calls
    assert worker.manager.snapshot().evictions <= seconds / 1.5 + 1
    assert longest <= 3.0
    assert worker.manager.snapshot().eviction_age_seconds <= longest


def test_loads_that_nobody_waits_for_get_the_next_free_thread_however_many_requests_wait(rig):
    """A share is set aside for models that move here."""
    worker = rig(40)
    for i in range(8):
        worker.register(f"hot{i}", 1)
        worker.manager.want(f"hot{i}")
    assert len(worker.loader.fetches) == worker.loader.file_threads
    worker.register("moved", 4, "device")
    worker.loader.end_fetch()
    worker.run()
    assert worker.loader.fetches[-1][0] is worker.bundle("moved", 4)


def test_one_thread_stays_free_for_requests_however_many_models_move_here(rig):
    worker = rig(40)
    for i in range(8):
        worker.register(f"moved{i}", 1, "device")
    worker.register("hot", 1)
    worker.run()
    assert len(worker.loader.fetches) == worker.loader.file_threads - 1
    worker.manager.want("hot")
    assert worker.loader.fetches[-1][0] is worker.bundle("hot", 1)


def test_a_load_that_finds_the_device_lost_is_not_taken_for_a_failure_of_its_model(rig):
    worker = rig(10)
    worker.register("a", 4)
    worker.manager.want("a")
    worker.loader.end_fetch()
    worker.run()
    worker.loader.end_fill(error=DeviceLostError("the context is lost"))
    with pytest.raises(DeviceLostError, match="context"):
        worker.run()
    assert worker.queues.refused_calls == []
