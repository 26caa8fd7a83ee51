# SPDX-License-Identifier: Apache-2.0
"""A managed worker before it serves: it meets its operator, plans, and says so."""

from __future__ import annotations

import pathlib

import pytest
from helpers.running_worker import CALLABLE, assigned

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.worker import EXIT_PLAN_ANEW


def test_a_worker_meets_before_it_knows_what_to_serve(config_for, start):
    worker = start(config_for(managed=True))
    state = worker.until(lambda state: state.condition.message != "")
    assert state.condition.phase == pb.WORKER_PHASE_STARTING
    assert state.condition.message == "waiting for the first assignment"
    assert not state.HasField("plan")
    assert worker.page("/healthz")[0] == 200
    assert worker.page("/readyz")[0] == 503


def test_an_empty_assignment_makes_a_worker_ready(config_for, start):
    worker = start(config_for(managed=True))
    worker.assign(generation=7)
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    assert state.assignment_generation == 7
    assert state.plan.fits
    assert state.device.weights_bytes > 0
    assert worker.page("/readyz") == (200, "ok\n")


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_a_worker_without_its_device_says_so_and_stays_up(config_for, start, small_bundle):
    worker = start(config_for(managed=True, backend="cuda"))
    worker.assign(assigned(small_bundle, "m"))
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert "the device cannot be used" in state.condition.failure.message
    assert worker.page("/healthz")[0] == 200
    assert worker.page("/readyz")[0] == 503


def test_a_worker_that_planned_for_nothing_plans_anew_for_its_first_models(config_for, start, hungry):
    config = config_for(managed=True, device={"budget": "32m"})
    first = start(config)
    first.assign()
    first.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    first.assign(assigned(hungry), generation=2)
    first._thread.join(60)
    assert first.exit_code == EXIT_PLAN_ANEW
    again = start(config)
    again.until_model("hungry", *CALLABLE)
    assert again.infer("hungry") == [5.0, 10.0, 15.0, 20.0]
