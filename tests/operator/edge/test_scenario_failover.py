# SPDX-License-Identifier: Apache-2.0
"""A leader that is killed or stopped: who follows, and what workers still accept of the one before."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.api_server import REPOSITORY
from helpers.control_tls import connect, files, mount
from helpers.operator_rig import BUDGETS, LEASES, MODELS, SECRETS, Rig
from helpers.running_worker import Running

from ballast_contract import names
from ballast_contract.config import WorkerConfig
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_operator.fleet.authority import Authority

pytestmark = pytest.mark.apiserver

FOLLOWED_SECONDS = 15
"""From the death of a leader to the Lease of its follower; the product's promise."""


class Operators:
    """Operator processes of one namespace, which find its workers by a file."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self._addresses = folder / "addresses.json"
        self._addresses.write_text("{}")
        self.running: list[asyncio.subprocess.Process] = []

    def reach(self, pod: str, port: int) -> None:
        known = json.loads(self._addresses.read_text())
        self._addresses.write_text(json.dumps({**known, pod: port}))

    async def start(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "helpers.operator_process", str(self._addresses), "run"]
        command += ["--worker-image", "registry.example/ballast-worker:test", "--kubeconfig", str(self._rig.kubeconfig)]
        command += ["--lease-namespace", self._rig.namespace, "--namespace", self._rig.namespace]
        path = os.pathsep.join(str(REPOSITORY / part) for part in ("tests", "operator", "worker_image"))
        images = {"BALLAST_OPERATOR_OPERATOR_IMAGE": "registry.example/ballast-operator:test"}
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "PYTHONPATH": path, **images}, stdout=asyncio.subprocess.PIPE
        )
        self.running.append(process)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"candidate\n"
        return process

    async def lease(self) -> dict[str, Any]:
        """Who leads, since when, and with which epoch."""
        found: dict[str, Any] = (await self._rig.client.get(LEASES, self._rig.namespace, "ballast-operator"))["spec"]
        return found

    async def followed(self, before: str) -> float:
        """When another than the one before began to lead."""

        async def other() -> bool:
            found = await self.lease()
            return found["holderIdentity"] not in ("", before) and found["leaseTransitions"] == 2

        await self._rig.until(other, seconds=60)
        return dt.datetime.fromisoformat((await self.lease())["acquireTime"]).timestamp()


@pytest.fixture
async def operators(bare: Rig, tmp_path: Path) -> AsyncIterator[Operators]:
    found = Operators(bare, tmp_path)
    yield found
    for process in found.running:
        if process.returncode is None:
            process.kill()
            await process.wait()


class RealWorker:
    """A whole worker of this repository in the place of a pod's container."""

    def __init__(self, rig: Rig, name: str, folder: Path) -> None:
        ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port"), 0)
        self.running = Running(
            WorkerConfig.model_validate(
                {
                    "name": name,
                    "managed": True,
                    "executable_store": str(folder / "executables"),
                    "state_directory": str(folder / "state"),
                    "device": {"budget": "32m"},
                    "serving": {**ports, "host": "127.0.0.1", "grace_seconds": 15},
                    "host": {"directory": str(folder / "shm"), "segment_bytes": "2m", "budget": "64m"},
                    "control": {"tls_directory": str(mount(rig.certificates, folder / "tls"))},
                }
            )
        )
        self.port = self.running.process.control_port
        self.released, self.models = True, ()

    def refusals(self) -> float:
        return self.running.metric('worker_control_refusals_total{reason="epoch"}')

    async def stop(self) -> None:
        await asyncio.to_thread(self.running.stop)


async def identity(rig: Rig) -> dict[str, bytes]:
    """What the leader shows: signed with the authority that the operators keep."""
    secret = await rig.client.get(SECRETS, rig.namespace, names.OPERATOR_CERTIFICATE)
    authority = Authority.from_data({key: base64.b64decode(text) for key, text in secret["data"].items()})
    return files(authority.signer, names.TLS_OPERATOR_NAME, client=True, trusts=authority.certificates)


async def test_no_call_of_a_killed_leader_s_epoch_is_accepted_once_its_follower_has_spoken(
    bare: Rig, operators: Operators, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A real worker: what it refuses is in its log and its metric. nolar/kopf#734, zalando-incubator/kopf#255."""
    bare.kubelet = False
    leader = await operators.start()
    await bare.budget()
    [pod] = await bare.until(bare.pods)
    name = pod["metadata"]["name"]
    await bare.until(bare.mount)
    worker = await asyncio.to_thread(RealWorker, bare, name, tmp_path)
    bare.workers[name] = worker  # it ends with the namespace
    operators.reach(name, worker.port)
    await bare.bind(pod)
    await bare.set_pod_status(name, phase="Running", podIP="10.77.0.1", podIPs=[{"ip": "10.77.0.1"}])
    await bare.set_ready(name, True)
    await bare.until_condition(BUDGETS, "default", "Ready", "True", seconds=60)
    lease = await operators.lease()
    assert (lease["leaseTransitions"], worker.running.worker.desk.epoch) == (1, 1)

    await operators.start()
    shown = await identity(bare)
    killed = time.time()
    leader.kill()
    assert await operators.followed(lease["holderIdentity"]) <= killed + FOLLOWED_SECONDS

    async def spoken() -> bool:
        return worker.running.worker.desk.epoch == 2

    await bare.until(spoken)
    counted = worker.refusals()
    calls = {
        "Watch": pb.WatchRequest(epoch=1),
        "Inspect": pb.InspectRequest(epoch=1, uri="file:///x"),
        "ApplyAssignment": pb.ApplyAssignmentRequest(epoch=1, generation=1 << 40),
        "CompactMemory": pb.CompactMemoryRequest(epoch=1, mode=pb.COMPACTION_MODE_MOVE),
        "SetModelResidency": pb.SetModelResidencyRequest(epoch=1, name="x"),
        "Release": pb.ReleaseRequest(epoch=1),
        "GetPlan": pb.GetPlanRequest(epoch=1),
        "Explain": pb.ExplainRequest(epoch=1),
    }
    assert set(calls) == set(pb.DESCRIPTOR.services_by_name["Control"].methods_by_name)

    def late() -> None:
        with connect(worker.port, shown) as channel, caplog.at_level(logging.WARNING, "ballast_worker"):
            stub = control_pb2_grpc.ControlStub(channel)
            for method, request in calls.items():
                call = getattr(stub, method)
                with pytest.raises(grpc.RpcError) as refused:
                    list(call(request, timeout=20)) if method == "Watch" else call(request, timeout=20)
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION, method
                assert dict(refused.value.trailing_metadata())[names.EPOCH_METADATA] == "2"

    await asyncio.to_thread(late)
    assert worker.refusals() == counted + len(calls)
    assert "epoch 1 is over: this worker has seen 2" in caplog.text
    await bare.until_condition(BUDGETS, "default", "Ready", "True")


async def test_a_leader_that_was_stopped_ends_when_it_goes_on_and_workers_obey_its_follower(
    bare: Rig, operators: Operators
):
    def prepare(worker) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            worker.port = free.getsockname()[1]
        operators.reach(worker.name, worker.port)

    bare.prepare = prepare
    leader = await operators.start()
    await bare.budget()
    await bare.model("minilm", residency="device")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    before = (await operators.lease())["holderIdentity"]
    await operators.start()
    leader.send_signal(signal.SIGSTOP)
    await operators.followed(before)
    [worker] = bare.workers.values()

    async def obeys() -> bool:
        return worker.epoch == 2

    await bare.until(obeys)
    leader.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(leader.wait(), 30) == 1
    await bare.model("second", residency="device")
    await bare.until_condition(MODELS, "second", "Ready", "True")
    epochs = [request.epoch for request in worker.calls("ApplyAssignment")]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}
