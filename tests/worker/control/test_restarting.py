# SPDX-License-Identifier: Apache-2.0
"""What a worker finds again after a restart, and what it may not share."""

from __future__ import annotations

import os

import grpc
import pytest
from helpers.running_worker import CALLABLE, assigned, until

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.settings import SettingError


def test_a_restarted_worker_serves_without_its_operator(config_for, start, small_bundle):
    """The last accepted assignment and epoch survive."""
    config = config_for(managed=True)
    first = start(config)
    first.assign(assigned(small_bundle, "m"), epoch=5, generation=9)
    first.until_model("m", *CALLABLE)
    instance = first.process.worker.feed.instance_id
    first.stop()
    second = start(config)
    second.until_model("m", *CALLABLE)
    assert second.infer("m") == [2.0, 4.0, 6.0, 8.0]
    assert second.process.worker.feed.instance_id != instance
    state = second.state()
    assert state.assignment_generation == 9
    with pytest.raises(grpc.RpcError, match="has seen 5"):
        second.assign(epoch=4)


def test_a_worker_that_serves_sweeps_the_executable_store_but_not_what_it_uses(
    config_for, start, small_bundle, tmp_path
):
    config = config_for(managed=True, executable_store=str(tmp_path / "store"))
    first = start(config)
    first.assign(assigned(small_bundle, "m"))
    first.until_model("m", pb.MODEL_PHASE_LOADED)
    first.stop()
    left = tmp_path / "store" / ".0.json.0"
    left.touch()
    for file in (tmp_path / "store").iterdir():
        os.utime(file, (0, 0))
    used = set((tmp_path / "store").iterdir()) - {left}
    second = start(config)
    second.until_model("m", pb.MODEL_PHASE_LOADED)
    until(lambda: not left.exists(), lambda: f"{left} is there still")
    assert set((tmp_path / "store").iterdir()) == used


def test_one_state_directory_serves_one_worker(config_for, start):
    config = config_for(managed=True)
    start(config)
    with pytest.raises(SettingError, match="stateDirectory"):
        start(config)
