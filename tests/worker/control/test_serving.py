# SPDX-License-Identifier: Apache-2.0
"""Models that come, take turns and leave on a whole worker."""

from __future__ import annotations

import pytest
import tritonclient.utils
from helpers.running_worker import CALLABLE, assigned

from ballast_contract.v1 import control_pb2 as pb


def test_an_assigned_model_is_built_planned_loaded_and_answers(config_for, start, small_bundle):
    worker = start(config_for(managed=True))
    answer = worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE))
    assert not answer.refused
    model = worker.until_model("m", pb.MODEL_PHASE_LOADED)
    assert model.object == "ns/m"
    assert model.tier == pb.TIER_DEVICE
    assert model.digest == small_bundle.digest
    assert model.weights_bytes == small_bundle.layout.nbytes
    assert model.HasField("load_milliseconds")
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    assert worker.metric('worker_requests_total{model="m",status="ok"}') == 1
    state = worker.until(lambda state: state.models[0].requests_total == 1)
    assert state.device.pinned_bytes == small_bundle.layout.nbytes


def test_free_memory_is_filled_ahead_of_calls_at_the_start_and_later(config_for, start, four):
    worker = start(config_for(managed=True, device={"budget": "24m"}))
    worker.assign(assigned(four[0]))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    worker.assign(assigned(four[0]), assigned(four[1]), generation=2)
    worker.until_model("b", pb.MODEL_PHASE_LOADED)


def test_models_larger_than_the_budget_together_are_swapped(config_for, start, four):
    """More models than fit are all answered; nothing fails while they take turns."""
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    worker.assign(*(assigned(bundle) for bundle in four))
    worker.until(lambda state: sum(m.phase in CALLABLE for m in state.models) == 4)
    for _ in range(2):
        for factor, bundle in enumerate(four, start=1):
            assert worker.infer(bundle.manifest.name) == [factor * x for x in (1.0, 2.0, 3.0, 4.0)]
    state = worker.until(lambda state: state.device.evictions_total > 0)
    assert state.device.admission_failures_total == 0
    assert state.device.in_use_bytes <= state.device.weights_bytes
    assert worker.metric("worker_weight_evicts_total") >= 1
    decisions = worker.control.Explain(pb.ExplainRequest(limit=5)).decisions
    assert len(decisions) == 5
    assert decisions[0].sequence > decisions[1].sequence


def test_a_removed_model_is_gone_and_its_bytes_are_free(config_for, start, small_bundle):
    worker = start(config_for(managed=True))
    worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    worker.assign(generation=2)
    worker.until(lambda state: not state.models and state.device.in_use_bytes == 0)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="m"):
        worker.infer("m")
