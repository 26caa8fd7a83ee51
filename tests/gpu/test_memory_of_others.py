# SPDX-License-Identifier: Apache-2.0
"""A worker that takes the place of a killed one waits for its device memory.

llm-d-incubation/llm-d-fast-model-actuation#709, llm-d-incubation/llm-d-fast-model-actuation#746.

The memory of a killed process is given back by the driver in its own time; 20 times in a row a process that holds nine
tenths of the device is killed and its successor looks at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ballast_worker.device import nvml
from ballast_worker.device.settling import settle

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]

HOLD = """
import sys, time
from cuda.bindings import driver
driver.cuInit(0)
_, device = driver.cuDeviceGet(0)
_, context = driver.cuDevicePrimaryCtxRetain(device)
driver.cuCtxSetCurrent(context)
status, address = driver.cuMemAlloc(int(sys.argv[1]))
print(status.value, flush=True)
time.sleep(600)
"""


@contextmanager
def holding(nbytes: int) -> Iterator[None]:
    """Another process has so much of the device, and is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(nbytes)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "0\n"
            yield
        finally:
            process.kill()


def pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def test_the_memory_of_a_killed_process_is_there_before_a_start_goes_on(gpu):
    wanted = gpu.total_bytes * 9 // 10
    found_too_little = 0
    waited = []
    for _ in range(20):
        with holding(wanted):
            pass
        at_once = nvml.usage(gpu.uuids)
        found_too_little += at_once.free < wanted
        began = time.monotonic()
        settled = settle(lambda: nvml.usage(gpu.uuids), wanted, pause=pause, say=lambda _: None)
        waited.append(round(time.monotonic() - began, 2))
        assert settled.free >= wanted
    print(
        json.dumps({"figure": "restart after SIGKILL", "found_too_little": found_too_little, "waited_seconds": waited})
    )


def test_a_device_that_somebody_else_keeps_is_refused_by_name(gpu, tmp_path):
    from ballast_contract.config import WorkerConfig  # noqa: PLC0415
    from ballast_worker.control import planning  # noqa: PLC0415
    from ballast_worker.control.machine import Machine  # noqa: PLC0415

    with holding(gpu.total_bytes // 2):
        config = WorkerConfig.model_validate({"name": "late", "backend": "cuda", "device": {"budget": "90%"}})
        machine = Machine(config)
        said = []
        looks = iter([False, False, True])
        machine.settle(pause=lambda _: next(looks), say=said.append)
        basis = planning.Basis(config, machine.budget, machine.context, machine.overhead(0))
        plan = basis.plan(basis.inputs({}))
    assert "bytes of device memory" in said[0]
    assert not plan.fits
    refusal = planning.refusal(plan).message
    print(json.dumps({"figure": "refusal beside another process", "message": refusal}))
    assert "bytes of the device are free, held by process" in refusal
