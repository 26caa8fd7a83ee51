# SPDX-License-Identifier: Apache-2.0
"""Host copies that cannot be kept, or take more than their budget, are told by a worker that serves on."""

from __future__ import annotations

from helpers.running_worker import assigned

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb


def test_a_host_copy_that_cannot_be_kept_is_told_until_its_model_leaves(config_for, start, four):
    worker = start(config_for(managed=True, host={"budget": "2m"}))
    worker.assign(assigned(four[0]))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    state = worker.until(lambda state: state.condition.failure.reason == Reason.SHM_FALLBACK)
    assert state.condition.phase == pb.WORKER_PHASE_READY
    assert "no host copy of 'a' (4 MiB) is kept" in state.condition.failure.message
    worker.assign(generation=2)
    worker.until(lambda state: not state.condition.HasField("failure"))


def test_copies_that_are_always_kept_beyond_the_budget_are_told(config_for, start, four):
    worker = start(config_for(managed=True, host={"budget": "2m"}))
    worker.assign(assigned(four[0], residency=pb.RESIDENCY_SYSTEM))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    state = worker.until(lambda state: state.condition.failure.reason == Reason.HOST_BUDGET_EXCEEDED)
    assert state.condition.phase == pb.WORKER_PHASE_READY
    assert "more than the budget of 2 MiB" in state.condition.failure.message
    assert worker.metric("worker_host_weight_excess_bytes") > 0
