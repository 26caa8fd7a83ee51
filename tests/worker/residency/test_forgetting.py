# SPDX-License-Identifier: Apache-2.0
"""Models that are served no longer, at every moment of their lives."""

from __future__ import annotations

import pytest

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Readiness


def forget(worker, name):
    done = []
    worker.manager.forget(name, lambda: done.append(name))
    return done


def test_an_idle_model_leaves_at_once(rig):
    worker = rig(10)
    worker.register("a", 5)
    worker.load("a")
    assert forget(worker, "a") == ["a"]
    assert worker.memory.statistics().in_use == 0
    assert worker.manager.snapshot().models == ()
    assert worker.manager.want("a").reason is Reason.NOT_REQUESTED


def test_a_model_that_is_not_known_is_forgotten_already(rig):
    assert forget(rig(10), "a") == ["a"]


def test_an_executing_model_leaves_when_its_last_execution_has_ended(rig):
    worker = rig(10)
    worker.register("a", 5)
    worker.load("a")
    leases = [worker.manager.lease("a"), worker.manager.lease("a")]
    done = forget(worker, "a")
    leases[0].release()
    worker.run()
    assert done == []
    leases[1].release()
    worker.run()
    assert done == ["a"]
    assert worker.memory.statistics().in_use == 0


def test_a_model_that_is_being_fetched_leaves_at_once_and_its_waiter_is_told(rig):
    worker = rig(10)
    worker.register("a", 5)
    worker.manager.want("a")
    assert forget(worker, "a") == ["a"]
    assert [(name, refusal.reason) for name, refusal in worker.queues.refused_calls] == [("a", Reason.NOT_REQUESTED)]
    worker.settle()
    assert worker.store.open == 0
    assert worker.queues.loaded_calls == []


def test_a_model_that_is_being_filled_leaves_when_the_copy_has_ended(rig):
    worker = rig(10)
    worker.register("a", 5)
    worker.manager.want("a")
    worker.loader.end_fetch()
    worker.run()
    done = forget(worker, "a")
    assert done == []
    worker.settle()
    assert done == ["a"]
    assert worker.memory.statistics().in_use == 0
    assert worker.store.open == 0


def test_a_model_that_waits_for_room_leaves_at_once(rig):
    worker = rig(5)
    worker.register("a", 5)
    worker.register("b", 5)
    worker.load("a")
    lease = worker.manager.lease("a")
    worker.manager.want("b")
    worker.settle()
    assert forget(worker, "b") == ["b"]
    assert worker.store.open == 0
    lease.release()


@pytest.mark.parametrize("stage", ["fetching", "filling", "executing"])
def test_a_name_that_comes_back_at_once_is_a_new_model(rig, stage):
    """vllm-project/aibrix#239."""
    worker = rig(20)
    worker.register("a", 5)
    lease = None
    if stage == "executing":
        worker.load("a")
        lease = worker.manager.lease("a")
    else:
        worker.manager.want("a")
        if stage == "filling":
            worker.loader.end_fetch()
            worker.run()
    done = forget(worker, "a")
    worker.register("a", 5)
    assert worker.manager.want("a") is Readiness.LOADING
    worker.settle()
    if lease is not None:
        lease.release()
        worker.run()
    assert done == ["a"]
    assert worker.residents() == {"a"}
    assert worker.memory.statistics().in_use == 5 * 4096
