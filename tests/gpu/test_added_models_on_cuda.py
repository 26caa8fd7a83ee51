# SPDX-License-Identifier: Apache-2.0
"""A model that is added while others serve: its builder lives in the slack of the plan, or the refusal says what to set."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from helpers.wide_bundles import pack_wide
from helpers.worker_process import WorkerCommand

from ballast_contract.config import WorkerConfig

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]


@pytest.fixture
def worker(gpu, tmp_path):
    """Start a worker for the folder `models` with this device section."""
    running = []
    (tmp_path / "models").mkdir()

    def start(**device: Any) -> WorkerCommand:
        ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port"), 0)
        config = WorkerConfig.model_validate(
            {
                "name": "gpu",
                "backend": "cuda",
                "model_directory": str(tmp_path / "models"),
                "executable_store": str(tmp_path / "executables"),
                "state_directory": str(tmp_path / "state"),
                "device": device,
                "host": {"budget": "1g", "directory": "/dev/shm/ballast-test"},
                "serving": {**ports, "host": "127.0.0.1"},
            }
        )
        found = WorkerCommand(config, tmp_path / f"worker-{len(running)}.yaml")
        running.append(found)
        found.wait_ready()
        return found

    yield start
    for one in running:
        if one.popen.poll() is None:
            one.kill()
        for line in one.seen:
            print(json.dumps(line))


def settled(worker: WorkerCommand, name: str) -> dict[str, Any]:
    """A model, once it is callable or refused."""
    deadline = time.monotonic() + 200
    while True:
        models = {model["name"]: model for model in json.loads(worker.page("/models")[1])}
        phase = models.get(name, {}).get("phase", "")
        if phase.removeprefix("MODEL_PHASE_") in ("PREPARED", "LOADED", "REFUSED"):
            return models[name]
        assert time.monotonic() < deadline, models
        time.sleep(0.1)


def test_a_model_that_is_added_is_built_in_the_slack_while_another_answers(worker, tmp_path):
    pack_wide(tmp_path / "models" / "m1", mebibytes=64, factor=1)
    serving = worker(budget="16g")
    pack_wide(tmp_path / "m2", mebibytes=64, factor=2)
    (tmp_path / "m2").rename(tmp_path / "models" / "m2")
    found = settled(serving, "m2")
    assert found["phase"] != "MODEL_PHASE_REFUSED", found
    assert serving.infer("m2") == [2.0, 4.0, 6.0, 8.0]
    assert serving.infer("m1") == [1.0, 2.0, 3.0, 4.0]
    assert serving.metric("worker_device_memory_process_used_bytes") <= 16 << 30
    assert serving.end() == 0


def test_a_slack_that_holds_no_builder_refuses_the_model_and_names_one_that_does(worker, tmp_path):
    pack_wide(tmp_path / "models" / "m1", mebibytes=64, factor=1)
    serving = worker(budget="4g")
    pack_wide(tmp_path / "m2", mebibytes=64, factor=2)
    (tmp_path / "m2").rename(tmp_path / "models" / "m2")
    refused = settled(serving, "m2")
    assert refused["phase"] == "MODEL_PHASE_REFUSED"
    assert serving.infer("m1") == [1.0, 2.0, 3.0, 4.0]
    print(refused["failure"])
    [percent] = re.findall(r"device\.weights\.slackPercent to (\d+)", refused["failure"]["message"])
    assert serving.end() == 0
    (tmp_path / "models" / "m2").rename(tmp_path / "m2")
    again = worker(budget="4g", weights={"slack_percent": int(percent)})
    (tmp_path / "m2").rename(tmp_path / "models" / "m2")
    assert settled(again, "m2")["phase"] != "MODEL_PHASE_REFUSED"
    assert again.infer("m2") == [2.0, 4.0, 6.0, 8.0]
    assert again.end() == 0
