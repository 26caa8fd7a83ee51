# SPDX-License-Identifier: Apache-2.0
"""Models that a worker refuses alone, with what would cure it, while it serves the others."""

from __future__ import annotations

import http.client
import re
import shutil

import pytest
import tritonclient.grpc
import tritonclient.utils
from helpers.running_worker import CALLABLE, assigned
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb


def test_bytes_that_cannot_fit_are_refused_before_anything_is_compiled(config_for, start, tmp_path):
    """Sizes come from the headers, so a model too large is refused by its real size and nothing is evicted for it."""
    large = pack_small(tmp_path / "large", mebibytes=20)
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    (verdict,) = worker.assign(assigned(large)).refused
    assert verdict.name == "large"
    assert verdict.failure.reason == "InsufficientDeviceMemory"
    for part in (str(large.layout.nbytes), "device.budget"):
        assert part in verdict.failure.message
    worker.until_model("large", pb.MODEL_PHASE_REFUSED)
    assert "worker_builds_total{" not in worker.page("/metrics")[1]


@pytest.mark.parametrize("what", ["missing", "broken"])
def test_a_bundle_that_cannot_be_read_is_refused_and_never_ready(config_for, start, small_bundle, tmp_path, what):
    """Reason and place at once, never callable in between; the others serve."""
    path = tmp_path / "bad"
    if what == "broken":
        path.mkdir()
        (path / "manifest.yaml").write_text("format: nonsense")
    worker = start(config_for(managed=True))
    bad = pb.AssignedModel(name="bad", uri=f"file://{path}", residency=pb.RESIDENCY_UNPINNED)
    (verdict,) = worker.assign(bad, assigned(small_bundle, "good")).refused
    assert verdict.failure.reason == ("SourceNotFound" if what == "missing" else "BundleInvalid")
    assert str(path) in verdict.failure.message
    seen = []
    for state in worker.states():
        seen += [m.phase for m in state.models if m.name == "bad"]
        if any(m.name == "good" and m.phase in CALLABLE for m in state.models):
            break
    assert set(seen) <= {pb.MODEL_PHASE_PENDING, pb.MODEL_PHASE_REFUSED}
    assert seen[-1] == pb.MODEL_PHASE_REFUSED
    with pytest.raises(tritonclient.utils.InferenceServerException, match="bad"):
        worker.infer("bad")


def test_a_permanent_failure_waits_for_a_changed_spec(config_for, start, small_bundle, tmp_path):
    """No hot loop, and recovery when the spec changes."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.yaml").write_text("format: nonsense")
    worker = start(config_for(managed=True))
    worker.assign(pb.AssignedModel(name="m", uri=f"file://{tmp_path / 'bad'}", residency=pb.RESIDENCY_UNPINNED))
    refused = worker.until_model("m", pb.MODEL_PHASE_REFUSED)
    assert refused.failure.permanent
    assert "m" not in worker.worker._lineup._retries
    worker.assign(assigned(small_bundle, "m"), generation=2)
    assert not worker.until_model("m", *CALLABLE).HasField("failure")


def test_a_source_that_appears_later_is_found(config_for, start, small_bundle, tmp_path):
    worker = start(config_for(managed=True))
    model = pb.AssignedModel(name="m", uri=f"file://{tmp_path / 'late'}", residency=pb.RESIDENCY_UNPINNED)
    worker.assign(model)
    assert not worker.until_model("m", pb.MODEL_PHASE_REFUSED).failure.permanent
    shutil.copytree(small_bundle.path, tmp_path / "late")
    worker.until_model("m", *CALLABLE)


def test_a_greedy_model_is_refused_with_the_setting_while_others_serve(config_for, start, small_bundle, hungry):
    worker = start(config_for(managed=True, device={"budget": "32m"}))
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    worker.assign(assigned(small_bundle, "m"), assigned(hungry), generation=2)
    refused = worker.until_model("hungry", pb.MODEL_PHASE_REFUSED)
    assert refused.failure.reason == "ScratchExceedsPool"
    assert refused.failure.permanent
    assert "device.scratch" in refused.failure.message
    assert refused.scratch_bytes >= 8 << 20
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]


def test_a_bound_on_scratch_keeps_one_greedy_model_from_raising_it_for_all(config_for, start, small_bundle, hungry):
    worker = start(config_for(managed=True, device={"budget": "64m", "scratch": "4m"}))
    worker.assign(assigned(small_bundle, "m"), assigned(hungry))
    assert worker.until_model("hungry", pb.MODEL_PHASE_REFUSED).failure.reason == "ScratchExceedsPool"
    worker.until_model("m", *CALLABLE)
    lines = {line.line: line.bytes for line in worker.control.GetPlan(pb.GetPlanRequest()).plan.lines}
    assert lines["scratch"] == 4 << 20


@pytest.mark.parametrize("residency", [pb.RESIDENCY_UNPINNED, pb.RESIDENCY_DEVICE])
def test_a_model_whose_weights_are_not_those_of_its_manifest_is_ready_nowhere(
    config_for, start, small_bundle, tmp_path, residency
):
    shutil.copytree(small_bundle.path, tmp_path / "m")
    manifest = tmp_path / "m" / "manifest.yaml"
    manifest.write_text(re.sub("blake3:[0-9a-f]{64}", "blake3:" + "0" * 64, manifest.read_text()))
    worker = start(config_for(managed=True))
    worker.assign(pb.AssignedModel(name="m", uri=f"file://{tmp_path / 'm'}", residency=residency))
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    with pytest.raises(tritonclient.utils.InferenceServerException):
        worker.infer("m")
    state = worker.until_model("m", pb.MODEL_PHASE_REFUSED)
    assert (state.failure.reason, state.failure.permanent, state.tier) == ("BundleInvalid", True, pb.TIER_NONE)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="blake3"):
        worker.infer("m")
    ports = worker.worker.parts.frontend.ports
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
        assert not client.is_model_ready("m")
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=20)
    connection.request("GET", "/v2/models/m/ready")
    assert connection.getresponse().status == 503
    connection.close()
    worker.assign(assigned(small_bundle, "m"), generation=2)
    worker.until_model("m", pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADED)
    assert worker.infer("m")
