# SPDX-License-Identifier: Apache-2.0
"""A worker that takes the place of a killed one waits for its device memory.

llm-d-incubation/llm-d-fast-model-actuation#709, llm-d-incubation/llm-d-fast-model-actuation#746.

The memory of a killed process is given back by the driver in its own time. What holds the device here is a plain process;
its successor is what a worker does before it takes anything: it settles, and makes its plan.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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
def holding(nbytes: int) -> Iterator[subprocess.Popen[str]]:
    """Another process has so much of the device, and is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(nbytes)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "0\n"
            yield process
        finally:
            process.kill()


def test_a_start_waits_until_the_memory_of_a_killed_process_is_there_and_its_plan_fits(gpu):
    """20 times in a row nine tenths of the device are held when the successor looks first, and given back by a SIGKILL."""
    from ballast_contract.config import WorkerConfig  # noqa: PLC0415
    from ballast_worker.control import planning  # noqa: PLC0415
    from ballast_worker.control.machine import Machine  # noqa: PLC0415

    config = WorkerConfig.model_validate({"name": "next", "backend": "cuda", "device": {"budget": "90%"}})
    for _ in range(20):
        with holding(gpu.total_bytes * 9 // 10) as former:

            def kill_and_wait(seconds: float, former: subprocess.Popen[str] = former) -> bool:
                former.kill()
                time.sleep(seconds)
                return False

            machine = Machine(config)
            said: list[str] = []
            machine.settle(pause=kill_and_wait, say=said.append)
        assert "bytes of device memory" in said[0]
        assert machine.settled
        basis = planning.Basis(config, machine.budget, machine.context, machine.overhead(0))
        assert basis.plan(basis.inputs({})).fits


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
