# SPDX-License-Identifier: Apache-2.0
"""Device memory that a bundle declares for itself is counted, at the start and for a model that comes later."""

from __future__ import annotations

import pytest
from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb

MI = 1 << 20
CALLABLE = (pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADING, pb.MODEL_PHASE_LOADED)


@pytest.fixture
def generative(tmp_path):
    """A bundle that wants 10 MiB in pages of 1 MiB and cannot do without 6."""
    lines = [{"name": "kvPool", "unit": MI, "count": 10, "minimum": 6}]
    return assigned(pack_small(tmp_path / "generative", lines=lines))


def planned(worker) -> dict[str, int]:
    return {line.line: line.bytes for line in worker.control.GetPlan(pb.GetPlanRequest()).plan.lines}


def test_lines_of_a_model_of_the_start_are_in_the_plan(config_for, start, generative):
    worker = start(config_for(managed=True, device={"budget": "32m"}))
    worker.assign(generative)
    worker.until_model("generative", *CALLABLE)
    plan = planned(worker)
    assert plan["generative: kvPool"] == 10 * MI
    assert sum(plan.values()) == 32 * MI


def test_lines_of_a_later_model_have_no_memory_until_the_worker_plans_anew(config_for, start, small_bundle, generative):
    config = config_for(managed=True, device={"budget": "32m"})
    worker = start(config)
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    worker.assign(assigned(small_bundle, "m"), generative, generation=2)
    refused = worker.until_model("generative", pb.MODEL_PHASE_REFUSED)
    assert refused.failure.reason == "InsufficientDeviceMemory"
    assert f"at least {6 * MI} bytes of device memory as 'generative: kvPool'" in refused.failure.message
    assert "restart the worker" in refused.failure.message
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    worker.stop()
    again = start(config)
    again.until_model("generative", *CALLABLE)
    assert planned(again)["generative: kvPool"] == 10 * MI


def test_lines_that_never_fit_refuse_their_model_with_the_budget_that_would_hold_them(config_for, start, tmp_path):
    lines = [{"name": "kvPool", "unit": MI, "count": 40, "minimum": 30}]
    worker = start(config_for(managed=True, device={"budget": "32m"}))
    worker.assign(assigned(pack_small(tmp_path / "m", lines=lines)))
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    refused = worker.until_model("m", pb.MODEL_PHASE_REFUSED)
    assert refused.failure.reason == "InsufficientDeviceMemory"
    assert "device.budget=34Mi" in refused.failure.message
