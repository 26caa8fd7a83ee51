# SPDX-License-Identifier: Apache-2.0
"""Device memory that a failed load leaves behind is told to whoever watches the worker."""

from __future__ import annotations

from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_pool import SimulatedPool

MIB = 1 << 20


def test_bytes_that_a_failed_load_leaves_behind_are_told_in_state_metric_and_log(
    config_for, start, small_bundle, tmp_path, monkeypatch, caplog
):
    """A load that failed half way kept what it had (vllm-project/vllm#34600): where that happens, it is not silent."""
    put, free = SimulatedPool.put, SimulatedPool.free

    def put_or_refuse(self, data):
        if data.nbytes == 16:  # the last of its tensors
            raise DeviceError("no room, as XLA might say")
        return put(self, data)

    def keep_two(self, array):
        if array.nbytes != 2 * MIB:
            free(self, array)

    worker = start(config_for(managed=True, device={"budget": "200m", "allocator": "bfc"}))
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    assert worker.state().device.leaked_bytes == 0
    assert worker.metric("worker_device_memory_leaked_bytes_total") == 0
    monkeypatch.setattr(SimulatedPool, "put", put_or_refuse)
    monkeypatch.setattr(SimulatedPool, "free", keep_two)
    large = pack_small(tmp_path / "large", mebibytes=2)
    worker.assign(assigned(small_bundle, "m"), assigned(large), generation=2)
    state = worker.until(lambda state: state.device.leaked_bytes > 0)
    assert state.device.leaked_bytes == 2 * MIB
    assert worker.metric("worker_device_memory_leaked_bytes_total") == 2 * MIB
    assert f"{2 * MIB} bytes of device memory are still in use" in caplog.text
    assert "after the end of large#" in caplog.text
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
