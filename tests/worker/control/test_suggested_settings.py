# SPDX-License-Identifier: Apache-2.0
"""Whatever a refusal names as a cure is one: each setting, with the value that was said, makes the model fit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb

MI = 1 << 20
CALLABLE = (pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADING, pb.MODEL_PHASE_LOADED)


def named_budget(message: str) -> str:
    [value] = re.findall(r"set device\.budget to (\S+),", message)
    return value


@pytest.mark.parametrize("ready", [False, True], ids=["at its first assignment", "while it serves"])
def test_the_budget_that_is_named_for_bytes_that_do_not_fit_is_enough(
    config_for, start, small_bundle, tmp_path, ready: bool
):
    large = assigned(pack_small(tmp_path / "large", mebibytes=20))
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    others = [assigned(small_bundle, "m")] if ready else []
    if ready:
        worker.assign(*others)
        worker.until_model("m", *CALLABLE)
    worker.assign(*others, large, generation=2)
    budget = named_budget(worker.until_model("large", pb.MODEL_PHASE_REFUSED).failure.message)
    worker.stop()
    bigger = start(config_for(managed=True, device={"budget": budget}))
    bigger.assign(*others, large, generation=3)
    assert bigger.until_model("large", pb.MODEL_PHASE_REFUSED, *CALLABLE).phase in CALLABLE


def test_the_budget_that_is_named_for_what_does_not_fit_beside_pinned_models_is_enough(config_for, start, tmp_path):
    pinned = assigned(pack_small(tmp_path / "pinned", mebibytes=20), residency=pb.RESIDENCY_DEVICE)
    other = assigned(pack_small(tmp_path / "other", mebibytes=10))
    worker = start(config_for(managed=True, device={"budget": "32m"}))
    worker.assign(pinned)
    worker.until_model("pinned", pb.MODEL_PHASE_LOADED)
    worker.assign(pinned, other, generation=2)
    message = worker.until_model("other", pb.MODEL_PHASE_REFUSED).failure.message
    [more] = re.findall(r"raise device\.budget by (\d+)Mi", message)
    worker.stop()
    bigger = start(config_for(managed=True, device={"budget": f"{32 + int(more)}Mi"}))
    bigger.assign(pinned, other, generation=3)
    assert bigger.until_model("other", pb.MODEL_PHASE_REFUSED, *CALLABLE).phase in CALLABLE


SETTINGS: dict[str, dict[str, Any]] = {
    "device.budget": {"budget": "16m"},
    "device.weights.maxPercent": {"budget": "32m", "weights": {"max_percent": 40}},
    "device.weights.slackPercent": {"budget": "32m", "weights": {"slack_percent": 60}},
    "device.scratch": {"budget": "32m", "scratch": "16m"},
    "residency of b": {"budget": "24m"},
}


def changed(device: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    match key.split("."):
        case ["device", "weights", "maxPercent"]:
            return {**device, "weights": {"max_percent": int(value)}}
        case ["device", "weights", "slackPercent"]:
            return {**device, "weights": {"slack_percent": int(value)}}
        case ["device", name]:
            return {**device, name: value}
    return device


@pytest.mark.parametrize("key", SETTINGS)
def test_each_setting_that_a_refused_plan_names_makes_every_model_callable(config_for, start, tmp_path, key: str):
    a, b, c = (pack_small(tmp_path / name, mebibytes=size) for name, size in (("a", 12), ("b", 6), ("c", 8)))
    pinned, swapped = pb.RESIDENCY_DEVICE, pb.RESIDENCY_UNPINNED
    models = [assigned(a, residency=pinned), assigned(b, residency=pinned), assigned(c)]
    device = SETTINGS[key]
    worker = start(config_for(managed=True, device=device))
    worker.assign(*models)
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED and state.HasField("plan"))
    plan = worker.control.GetPlan(pb.GetPlanRequest()).plan
    worker.stop()
    [value] = [knob.value for knob in plan.knobs if knob.key == key]
    if key.startswith("residency"):
        models[1] = assigned(b, residency=swapped)
    cured = start(config_for(managed=True, device=changed(device, key, value)))
    cured.assign(*models, generation=2)
    state = cured.until(lambda state: len(state.models) == 3 and all(m.phase in CALLABLE for m in state.models))
    assert all(not model.HasField("failure") for model in state.models)


def test_scratch_is_not_named_where_less_of_it_would_refuse_a_model(config_for, start, tmp_path, hungry):
    """`hungry` takes 8 MiB of scratch: with less the plan would fit, and not the model."""
    pinned = assigned(pack_small(tmp_path / "a", mebibytes=16), residency=pb.RESIDENCY_DEVICE)
    worker = start(config_for(managed=True, device={"budget": "26m"}))
    worker.assign(pinned, assigned(hungry))
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED and state.HasField("plan"))
    knobs = {knob.key for knob in worker.control.GetPlan(pb.GetPlanRequest()).plan.knobs}
    assert "device.budget" in knobs
    assert "device.scratch" not in knobs
