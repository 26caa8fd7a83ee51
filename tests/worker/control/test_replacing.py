# SPDX-License-Identifier: Apache-2.0
"""A bundle that takes the place of another one on a whole worker."""

from __future__ import annotations

import threading

import pytest
import tritonclient.utils
from helpers.running_worker import CALLABLE, assigned, until
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb


def test_a_replaced_bundle_takes_over_while_the_old_one_serves(config_for, start, tmp_path):
    old, new = pack_small(tmp_path / "old", factor=2), pack_small(tmp_path / "new", factor=3)
    worker = start(config_for(managed=True))
    worker.assign(assigned(old, "m"))
    worker.until_model("m", *CALLABLE)
    assert worker.infer("m")[0] == 2.0
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            found = worker.infer("m")[0]
            if found not in (2.0, 3.0):
                wrong.append(found)

    caller = threading.Thread(target=call)
    caller.start()
    worker.assign(assigned(new, "m"), generation=2)
    worker.until(lambda state: state.models[0].digest == new.digest and state.models[0].phase in CALLABLE)
    until(lambda: worker.infer("m")[0] == 3.0, lambda: f"the old bytes serve still: {worker.infer('m')}")
    stop.set()
    caller.join()
    assert wrong == []


def test_a_directory_replaced_by_a_rename_serves_its_new_bytes_although_nothing_was_assigned(
    config_for, start, tmp_path
):
    old, new = pack_small(tmp_path / "m", factor=2), pack_small(tmp_path / "new", factor=3, name="m")
    worker = start(config_for(managed=True, host={"budget": "0"}))
    worker.assign(assigned(old))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    old.path.rename(tmp_path / "old")
    new.path.rename(old.path)
    worker.control.CompactMemory(pb.CompactMemoryRequest(epoch=1, mode=pb.COMPACTION_MODE_FREE))
    with pytest.raises(tritonclient.utils.InferenceServerException, match=r"weights\.safetensors"):
        worker.infer("m")
    worker.until(lambda state: state.models[0].digest == new.digest and not state.models[0].HasField("failure"))
    assert worker.infer("m")[0] == 3.0


def test_old_bytes_serve_on_when_the_new_ones_are_refused(config_for, start, small_bundle, tmp_path):
    worker = start(config_for(managed=True))
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    worker.assign(assigned(small_bundle, "m", uri=f"file://{tmp_path / 'nowhere'}"), generation=2)
    state = worker.until(lambda state: state.models[0].failure.reason == "SourceNotFound")
    assert state.models[0].phase in CALLABLE
    assert state.models[0].digest == small_bundle.digest
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
