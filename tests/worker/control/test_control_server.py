# SPDX-License-Identifier: Apache-2.0
"""The end of the control server and of the calls that are under way then."""

from __future__ import annotations

import threading

import grpc
import pytest
from helpers.running_worker import Running

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_worker.control.refusals import Refusals
from ballast_worker.control.server import ControlServer
from ballast_worker.control.service import ControlService
from ballast_worker.residency.protocol import CompactionMode


class Waiting:
    """A worker whose compactions end when the test says so."""

    epoch = 0

    def __init__(self):
        self.began, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()

    def compact(self, mode, reload, timeout):
        self.began.set()
        self.may_end.wait(60)
        self.ended.set()


def test_a_call_that_waits_for_something_does_not_hold_up_the_end_of_its_server(config_for):
    worker = Waiting()
    server = ControlServer(config_for(), ControlService(worker, None, Refusals()), None, Refusals())
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = control_pb2_grpc.ControlStub(channel).CompactMemory.future(
                pb.CompactMemoryRequest(mode=pb.COMPACTION_MODE_MOVE)
            )
            worker.began.wait()
            server.stop(grace_seconds=0.0)
            assert not worker.ended.is_set()
            with pytest.raises(grpc.RpcError):
                call.result()
    finally:
        worker.may_end.set()
        worker.ended.wait()


@pytest.fixture
def ended(config_for, start) -> Running:
    worker = start(config_for(managed=True))
    worker.assign()
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    worker.stop()
    return worker


def test_a_compaction_that_the_end_of_the_worker_overtakes_is_refused(ended):
    found = ended.worker.desk.compact(CompactionMode.MOVE, (), timeout=20.0)
    assert found.reason is Reason.DRAINING
