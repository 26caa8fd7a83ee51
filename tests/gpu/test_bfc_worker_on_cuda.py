# SPDX-License-Identifier: Apache-2.0
"""A whole worker on an NVIDIA GPU with its weights in XLA's allocator. Figures are printed as one JSON line (run with -s)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.wide_bundles import MIB, pack_wide
from helpers.worker_process import WorkerCommand

from ballast_contract.config import WorkerConfig

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}))


def test_a_worker_with_its_weights_in_xlas_allocator_keeps_to_its_plan_while_models_take_turns(gpu, tmp_path):
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
            "device": {"budget": "4g", "allocator": "bfc"},
            "host": {"budget": "4g", "directory": "/dev/shm/ballast-test"},
            "serving": {**ports, "host": "127.0.0.1"},
        }
    )
    worker = WorkerCommand(config, tmp_path / "worker.yaml")
    try:
        worker.wait_ready()
        first = worker.metric("worker_device_memory_process_used_bytes")
        for turn in range(100):
            index = turn % 5 + 1
            assert worker.infer(f"m{index}") == [index * x for x in (1.0, 2.0, 3.0, 4.0)]
        used = worker.metric("worker_device_memory_process_used_bytes")
        lines = {line["line"]: int(line["bytes"]) for line in json.loads(worker.page("/plan")[1])["lines"]}
        loads = worker.metric("worker_weight_loads_total")
        report(
            "worker with bfc on cuda",
            driver_used=used,
            planned_without_slack=sum(lines.values()) - lines["slack"],
            grown=used - first,
            lines=lines,
            loads=loads,
            evictions=worker.metric("worker_weight_evicts_total"),
        )
        assert loads > 10
        assert worker.metric("worker_weight_admission_failures_total") == 0
        assert worker.metric("worker_device_memory_foreseen") == 1
        assert used <= 4 << 30
        assert used - first <= 4 * MIB
        assert worker.end() == 0
        assert not [line for line in worker.rest() if "does not agree with it" in json.dumps(line)]
    finally:
        if worker.popen.poll() is None:
            worker.kill()
        for line in worker.seen:
            print(json.dumps(line))
