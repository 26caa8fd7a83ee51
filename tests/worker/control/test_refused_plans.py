# SPDX-License-Identifier: Apache-2.0
"""A device memory plan that does not fit, what is said of it, and what cures it."""

from __future__ import annotations

import grpc
import pytest
from helpers.running_worker import assigned

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.worker import EXIT_REFUSED


def test_a_plan_that_does_not_fit_is_told_and_the_process_stays_up(config_for, start, four):
    """No crash loop: the operator reads shortfall and remedies, and a smaller assignment heals it."""
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    worker.assign(*(assigned(bundle, residency=pb.RESIDENCY_DEVICE) for bundle in four))
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED and state.HasField("plan"))
    assert state.condition.failure.reason == "PlanRefused"
    plan = worker.control.GetPlan(pb.GetPlanRequest()).plan
    assert not plan.fits
    assert plan.shortfall_bytes > 0
    assert plan.minimum_bytes == plan.budget_bytes + plan.shortfall_bytes
    assert str(plan.shortfall_bytes) in state.condition.failure.message
    assert "device.budget" in {knob.key for knob in plan.knobs}
    status, text = worker.page("/readyz")
    assert (status, "PlanRefused" in text) == (503, True)
    assert worker.page("/healthz")[0] == 200
    assert worker.metric("worker_plan_fits") == 0
    with pytest.raises(grpc.RpcError) as refused:
        worker.control.CompactMemory(pb.CompactMemoryRequest(mode=pb.COMPACTION_MODE_MOVE))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    worker.assign(assigned(four[0], residency=pb.RESIDENCY_DEVICE), generation=2)
    worker.until_model("a", pb.MODEL_PHASE_LOADED)


def test_a_worker_that_stands_alone_ends_when_its_plan_does_not_fit(config_for, start, four):
    models = [{"name": b.manifest.name, "uri": f"file://{b.path}", "residency": "device"} for b in four]
    worker = start(config_for(models=models, device={"budget": "16m"}))
    worker._thread.join(120)
    assert worker.exit_code == EXIT_REFUSED
