# SPDX-License-Identifier: Apache-2.0
"""A whole worker on an NVIDIA GPU: builder processes measure, the plan is kept to the byte, models larger than it take turns.

Figures are printed as one JSON line each (run with -s); nothing is asserted about time.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from helpers.wide_bundles import MIB, pack_wide, scratch_of
from helpers.worker_process import WorkerCommand

from ballast_contract.config import WorkerConfig
from ballast_worker.build.builder import BuildRequest
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.bundle.reader import open_bundle

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}))


def test_a_builder_measures_scratch_code_and_context(gpu, tmp_path):
    pack_wide(tmp_path / "wide", mebibytes=64, factor=2)
    bundle = open_bundle(tmp_path / "wide")
    store = ExecutableStore(tmp_path / "executables")
    request = BuildRequest(bundle.path, bundle.digest, ((("batch", 1),),), "cuda", 0, 8 << 30, 250.0)
    began = time.monotonic()
    result = LocalBuilder(store, parallelism=1).build(request, progress=lambda _: None)
    seconds = time.monotonic() - began
    assert result.failure is None, result.failure
    (program,) = result.programs
    assert program.scratch_bytes >= scratch_of(64) // 2
    assert result.context_bytes > 100 * MIB
    began = time.monotonic()
    again = LocalBuilder(store, parallelism=1).build(request, progress=lambda _: None)
    report(
        "builder on cuda",
        seconds=round(seconds, 2),
        second_start_seconds=round(time.monotonic() - began, 2),
        scratch_bytes=program.scratch_bytes,
        code_bytes=program.code_bytes,
        context_bytes=result.context_bytes,
        run_seconds=program.run_seconds,
    )
    assert again.compiled == 0
    assert again.programs == result.programs


def test_a_builder_that_needs_more_than_it_may_take_is_refused(gpu, tmp_path):
    pack_wide(tmp_path / "greedy", mebibytes=512, factor=2)
    bundle = open_bundle(tmp_path / "greedy")
    request = BuildRequest(bundle.path, bundle.digest, ((("batch", 1),),), "cuda", 0, 1 << 30, 250.0)
    result = LocalBuilder(ExecutableStore(tmp_path / "x"), parallelism=1).build(request, progress=lambda _: None)
    assert result.failure is not None
    assert result.failure.reason == "InsufficientDeviceMemory", result.failure


def test_a_worker_keeps_to_its_plan_while_models_take_turns(gpu, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for index in range(1, 6):
        pack_wide(models / f"m{index}", mebibytes=512, factor=index)
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port"), 0)
    config = WorkerConfig.model_validate(
        {
            "name": "gpu",
            "backend": "cuda",
            "model_directory": str(models),
            "executable_store": str(tmp_path / "executables"),
            "state_directory": str(tmp_path / "state"),
            "device": {"budget": "4g"},
            "host": {"budget": "4g", "directory": "/dev/shm/ballast-test"},
            "serving": {**ports, "host": "127.0.0.1"},
        }
    )
    worker = WorkerCommand(config, tmp_path / "worker.yaml")
    try:
        began = time.monotonic()
        worker.wait_ready()
        ready_seconds = time.monotonic() - began
        first = worker.metric("worker_device_memory_process_used_bytes")
        began = time.monotonic()
        for turn in range(100):
            index = turn % 5 + 1
            assert worker.infer(f"m{index}") == [index * x for x in (1.0, 2.0, 3.0, 4.0)]
        seconds = time.monotonic() - began
        used = worker.metric("worker_device_memory_process_used_bytes")
        lines = {line["line"]: int(line["bytes"]) for line in json.loads(worker.page("/plan")[1])["lines"]}
        loads = worker.metric("worker_weight_loads_total")
        report(
            "worker on cuda",
            ready_seconds=round(ready_seconds, 2),
            budget=4 << 30,
            driver_used=used,
            planned_without_slack=sum(lines.values()) - lines["slack"],
            grown=used - first,
            lines=lines,
            loads=loads,
            seconds_per_call=round(seconds / 100, 4),
            load_gigabytes_per_second=worker.metric("worker_weight_load_bytes_total")
            / worker.metric("worker_weight_load_seconds_total")
            / 1e9,
        )
        assert loads > 10
        assert worker.metric("worker_weight_admission_failures_total") == 0
        made = next(line["lines"] for line in worker.seen if line.get("event") == "device.plan")
        planned = sum(lines.values()) - lines["slack"]
        assert used <= sum(made.values()) - made["slack"]
        assert planned - lines["code"] - 16 * MIB <= used <= planned + 16 * MIB
        assert used - first <= 4 * MIB
        assert worker.end() == 0
    finally:
        if worker.popen.poll() is None:
            worker.kill()
        for line in worker.seen:
            print(json.dumps(line))
