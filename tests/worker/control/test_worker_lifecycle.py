# SPDX-License-Identifier: Apache-2.0
"""A whole worker under an operator: meet, build, plan, refuse or serve, change, drain. Real processes and real JAX."""

from __future__ import annotations

import http.client
import os
import pathlib
import re
import shutil
import threading
import time

import grpc
import pytest
import tritonclient.grpc
import tritonclient.utils
from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.parts import Parts
from ballast_worker.control.process import StateInUseError
from ballast_worker.control.worker import EXIT_PLAN_ANEW, EXIT_REFUSED

CALLABLE = (pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADING, pb.MODEL_PHASE_LOADED)


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    """Four models of 4 MiB each; a budget of 16 MiB holds three."""
    root = tmp_path_factory.mktemp("four")
    return [pack_small(root / name, mebibytes=4, factor=index) for index, name in enumerate("abcd", start=1)]


def test_a_worker_meets_before_it_knows_what_to_serve(config_for, start):
    worker = start(config_for(managed=True))
    state = worker.until(lambda state: state.condition.message != "")
    assert state.condition.phase == pb.WORKER_PHASE_STARTING
    assert state.condition.message == "waiting for the first assignment"
    assert not state.HasField("plan")
    assert worker.page("/healthz")[0] == 200
    assert worker.page("/readyz")[0] == 503


def test_an_empty_assignment_makes_a_worker_ready(config_for, start):
    worker = start(config_for(managed=True))
    worker.assign(generation=7)
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    assert state.assignment_generation == 7
    assert state.plan.fits
    assert state.device.weights_bytes > 0
    assert worker.page("/readyz") == (200, "ok\n")


def test_an_assigned_model_is_built_planned_loaded_and_answers(config_for, start, small_bundle):
    worker = start(config_for(managed=True))
    answer = worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE))
    assert not answer.refused
    model = worker.until_model("m", pb.MODEL_PHASE_LOADED)
    assert model.object == "ns/m"
    assert model.tier == pb.TIER_DEVICE
    assert model.digest == small_bundle.digest
    assert model.weights_bytes == small_bundle.layout.nbytes
    assert model.HasField("load_milliseconds")
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
    assert worker.metric('worker_requests_total{model="m",status="ok"}') == 1
    state = worker.until(lambda state: state.models[0].requests_total == 1)
    assert state.device.pinned_bytes == small_bundle.layout.nbytes


def test_free_memory_is_filled_ahead_of_calls_at_the_start_and_later(config_for, start, four):
    worker = start(config_for(managed=True, device={"budget": "24m"}))
    worker.assign(assigned(four[0]))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    worker.assign(assigned(four[0]), assigned(four[1]), generation=2)
    worker.until_model("b", pb.MODEL_PHASE_LOADED)


def test_a_host_copy_that_cannot_be_kept_is_told_until_its_model_leaves(config_for, start, four):
    worker = start(config_for(managed=True, host={"budget": "2m"}))
    worker.assign(assigned(four[0]))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    state = worker.until(lambda state: state.condition.failure.reason == Reason.SHM_FALLBACK)
    assert state.condition.phase == pb.WORKER_PHASE_READY
    assert "no host copy of 'a' (4 MiB) is kept" in state.condition.failure.message
    worker.assign(generation=2)
    worker.until(lambda state: not state.condition.HasField("failure"))


def test_copies_that_are_always_kept_beyond_the_budget_are_told(config_for, start, four):
    worker = start(config_for(managed=True, host={"budget": "2m"}))
    worker.assign(assigned(four[0], residency=pb.RESIDENCY_SYSTEM))
    worker.until_model("a", pb.MODEL_PHASE_LOADED)
    state = worker.until(lambda state: state.condition.failure.reason == Reason.HOST_BUDGET_EXCEEDED)
    assert state.condition.phase == pb.WORKER_PHASE_READY
    assert "more than the budget of 2 MiB" in state.condition.failure.message
    assert worker.metric("worker_host_weight_excess_bytes") > 0


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
    while left.exists():
        pass
    assert set((tmp_path / "store").iterdir()) == used


def test_models_larger_than_the_budget_together_are_swapped(config_for, start, four):
    """More models than fit are all answered; nothing fails while they take turns.

    kserve/modelmesh-serving#396, kserve/modelmesh#72, kserve/modelmesh#82.
    """
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    worker.assign(*(assigned(bundle) for bundle in four))
    worker.until(lambda state: sum(m.phase in CALLABLE for m in state.models) == 4)
    for _ in range(2):
        for factor, bundle in enumerate(four, start=1):
            assert worker.infer(bundle.manifest.name) == [factor * x for x in (1.0, 2.0, 3.0, 4.0)]
    state = worker.until(lambda state: state.device.evictions_total > 0)
    assert state.device.admission_failures_total == 0
    assert state.device.in_use_bytes <= state.device.weights_bytes
    assert worker.metric("worker_weight_evicts_total") >= 1
    decisions = worker.control.Explain(pb.ExplainRequest(limit=5)).decisions
    assert len(decisions) == 5
    assert decisions[0].sequence > decisions[1].sequence


def test_bytes_that_cannot_fit_are_refused_before_anything_is_compiled(config_for, start, tmp_path):
    """Sizes come from the headers, so a model too large is refused by its real size and nothing is evicted for it.

    kserve/modelmesh-serving#511.
    """
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
    """No hot loop, and recovery when the spec changes. vllm-project/aibrix#1860."""
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
    while worker.infer("m")[0] != 3.0:
        pass
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


def test_a_removed_model_is_gone_and_its_bytes_are_free(config_for, start, small_bundle):
    worker = start(config_for(managed=True))
    worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    worker.assign(generation=2)
    worker.until(lambda state: not state.models and state.device.in_use_bytes == 0)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="m"):
        worker.infer("m")


def test_a_plan_that_does_not_fit_is_told_and_the_process_stays_up(config_for, start, four):
    """No crash loop: the operator reads shortfall and remedies, and a smaller assignment heals it."""
    worker = start(config_for(managed=True, device={"budget": "16m"}))
    worker.assign(*(assigned(bundle, residency=pb.RESIDENCY_DEVICE) for bundle in four))
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED and state.HasField("plan"))
    assert state.condition.failure.reason == "PlanRefused"
    plan = worker.control.GetPlan(pb.GetPlanRequest()).plan
    assert not plan.fits
    assert plan.shortfall_bytes > 0
    assert plan.minimum_bytes == plan.budget_bytes + plan.shortfall_bytes
    assert str(plan.shortfall_bytes) in state.condition.failure.message
    assert "device.budget" in {knob.key for knob in plan.knobs}
    status, text = worker.page("/readyz")
    assert (status, "PlanRefused" in text) == (503, True)
    assert worker.page("/healthz")[0] == 200
    assert worker.metric("worker_plan_fits") == 0
    with pytest.raises(grpc.RpcError) as refused:
        worker.control.CompactMemory(pb.CompactMemoryRequest(mode=pb.COMPACTION_MODE_MOVE))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    worker.assign(assigned(four[0], residency=pb.RESIDENCY_DEVICE), generation=2)
    worker.until_model("a", pb.MODEL_PHASE_LOADED)


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_a_worker_without_its_device_says_so_and_stays_up(config_for, start, small_bundle):
    worker = start(config_for(managed=True, backend="cuda"))
    worker.assign(assigned(small_bundle, "m"))
    state = worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert "the device cannot be used" in state.condition.failure.message
    assert worker.page("/healthz")[0] == 200
    assert worker.page("/readyz")[0] == 503


def test_a_worker_that_stands_alone_ends_when_its_plan_does_not_fit(config_for, start, four):
    models = [{"name": b.manifest.name, "uri": f"file://{b.path}", "residency": "device"} for b in four]
    worker = start(config_for(models=models, device={"budget": "16m"}))
    worker._thread.join(120)
    assert worker.exit_code == EXIT_REFUSED


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


def test_a_worker_that_planned_for_nothing_plans_anew_for_its_first_models(config_for, start, hungry):
    config = config_for(managed=True, device={"budget": "32m"})
    first = start(config)
    first.assign()
    first.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    first.assign(assigned(hungry), generation=2)
    first._thread.join(60)
    assert first.exit_code == EXIT_PLAN_ANEW
    again = start(config)
    again.until_model("hungry", *CALLABLE)
    assert again.infer("hungry") == [5.0, 10.0, 15.0, 20.0]


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


def test_one_state_directory_serves_one_worker(config_for, start):
    config = config_for(managed=True)
    start(config)
    with pytest.raises(StateInUseError, match="stateDirectory"):
        start(config)


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
