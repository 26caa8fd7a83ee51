# SPDX-License-Identifier: Apache-2.0
"""How a worker ends: it serves until it is released, and as long as clients call."""

from __future__ import annotations

import time

from helpers.running_worker import CALLABLE, assigned

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.parts import Parts


def test_a_terminating_worker_admits_until_it_is_released(config_for, start, small_bundle):
    worker = start(config_for(managed=True, serving={"grace_seconds": 300}), linger_seconds=0.5)
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    worker.worker.terminate()
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_DRAINING)
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    worker.control.Release(pb.ReleaseRequest(epoch=1))
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    worker._thread.join(30)
    assert worker.exit_code == 0


def test_what_fails_while_a_worker_ends_does_not_keep_it_from_ending(config_for, start, monkeypatch, caplog):
    stop = Parts.stop

    def stop_and_fail(self, *, grace_seconds):
        stop(self, grace_seconds=grace_seconds)
        raise RuntimeError("something cannot be given back")

    monkeypatch.setattr(Parts, "stop", stop_and_fail)
    worker = start(config_for(managed=True))
    worker.assign()
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    worker.stop()
    assert worker.exit_code == 0
    assert "something cannot be given back" in caplog.text


def test_a_released_worker_stays_as_long_as_clients_call(config_for, start, small_bundle, monkeypatch):
    for module in ("connections", "http_times"):
        monkeypatch.setattr(f"ballast_worker.serving.{module}.CONNECTION_SECONDS", 3.0)
    worker = start(config_for(managed=True, serving={"grace_seconds": 300}), linger_seconds=0.0)
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    worker.worker.terminate()
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_DRAINING)
    worker.infer("m")
    worker.control.Release(pb.ReleaseRequest(epoch=1))
    asked = time.monotonic()
    while time.monotonic() - asked < 2.0:  # with a connection that is open and in use
        assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    worker._thread.join(30)
    assert worker.exit_code == 0
