# SPDX-License-Identifier: Apache-2.0
"""After a reservation that failed: the same plan is tried again here, and another one by a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.running_worker import assigned

from ballast_contract.config import WorkerConfig
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import planning
from ballast_worker.control.machine import Machine
from ballast_worker.control.worker import EXIT_PLAN_ANEW
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.plan import Plan
from ballast_worker.device.probe import DeviceFacts

GI = 1 << 30


def fails(*_: Any, **__: Any) -> None:
    raise DeviceError("somebody else holds the memory")


def plan_of(machine: Machine, config: WorkerConfig, scratch: int) -> Plan:
    basis = planning.Basis(
        config.model_copy(update={"device": config.device.model_copy(update={"scratch": scratch})}),
        machine.budget,
        machine.context,
        machine.overhead(0),
    )
    return basis.plan(basis.inputs({}))


def test_a_process_takes_one_size_of_xlas_pool(monkeypatch):
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.setenv(name, "")  # what is set below ends with the test
    facts = DeviceFacts(kind="cuda", name="a card", total_bytes=80 * GI, free_bytes=79 * GI)
    monkeypatch.setattr("ballast_worker.control.machine.reserve", fails)
    config = WorkerConfig.model_validate({"backend": "cuda", "device": {"budget": "60g"}})
    machine = Machine(config, describe=lambda *_: facts, usage=lambda _: None, beside=lambda _: 0)
    plan, other = plan_of(machine, config, 2 * GI), plan_of(machine, config, 3 * GI)
    assert machine.can_reserve(plan)
    assert machine.can_reserve(other)
    nothing: Any = None
    with pytest.raises(DeviceError):
        machine.reserve(plan, 0, models=(), catalog=nothing, journal=nothing, changed=nothing)
    assert machine.can_reserve(plan)
    assert not machine.can_reserve(other)


def test_a_plan_that_this_process_cannot_reserve_is_carried_out_by_another(
    config_for, start, small_bundle, monkeypatch
):
    monkeypatch.setattr("ballast_worker.control.machine.reserve", fails)
    worker = start(config_for(managed=True))
    worker.assign()
    refused = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert "somebody else holds the memory" in refused.condition.failure.message
    monkeypatch.setattr(Machine, "can_reserve", lambda *_: False)
    worker.assign(assigned(small_bundle, "m"), generation=2)
    worker._thread.join(60)
    assert worker.exit_code == EXIT_PLAN_ANEW
