# SPDX-License-Identifier: Apache-2.0
"""The control service of a running worker: epochs, statuses, compaction and wishes."""

from __future__ import annotations

import json
import logging
import threading

import grpc
import pytest
from helpers.running_worker import CALLABLE, assigned
from helpers.small_bundles import pack_small

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import lineup
from ballast_worker.control.service import MAX_WATCHERS


def refused(call, request, **options):
    with pytest.raises(grpc.RpcError) as error:
        call(request, **options)
    return error.value


def epoch_of(error):
    return dict(error.trailing_metadata())[names.EPOCH_METADATA]


def reason_of(error):
    return dict(error.trailing_metadata())[names.REASON_METADATA]


@pytest.fixture
def worker(config_for, start):
    return start(config_for(managed=True, device={"budget": "24m"}))


def test_an_older_epoch_is_refused_with_the_workers_own(worker):
    worker.assign(epoch=5)
    for call, request in (
        (worker.control.ApplyAssignment, pb.ApplyAssignmentRequest(epoch=4)),
        (worker.control.CompactMemory, pb.CompactMemoryRequest(epoch=4, mode=pb.COMPACTION_MODE_MOVE)),
        (worker.control.SetModelResidency, pb.SetModelResidencyRequest(epoch=4, name="m")),
        (worker.control.Release, pb.ReleaseRequest(epoch=4)),
        (worker.control.GetPlan, pb.GetPlanRequest(epoch=4)),
        (worker.control.Explain, pb.ExplainRequest(epoch=4)),
        (worker.control.Inspect, pb.InspectRequest(epoch=4)),
    ):
        error = refused(call, request)
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert epoch_of(error) == "5"
        assert "5" in error.details()
    stream = worker.control.Watch(pb.WatchRequest(epoch=4))
    assert refused(lambda _: next(stream), None).code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_higher_epoch_is_remembered_even_by_a_call_that_changes_nothing(worker):
    worker.control.GetPlan(pb.GetPlanRequest(epoch=8))
    assert epoch_of(refused(worker.control.GetPlan, pb.GetPlanRequest(epoch=7))) == "8"
    assert next(iter(worker.control.Watch(pb.WatchRequest(epoch=8)))).epoch == 8


def test_no_epoch_is_heard_from_loopback(worker):
    worker.assign(epoch=3)
    worker.assign(epoch=0, generation=2)
    assert worker.until(lambda state: state.assignment_generation == 2)


def test_assignments_are_idempotent(worker, small_bundle):
    first = worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    again = worker.assign(assigned(small_bundle, "m"))
    assert first == again
    assert len(worker.state().models) == 1


def test_two_models_of_one_name_are_refused(worker, small_bundle):
    error = refused(
        worker.control.ApplyAssignment,
        pb.ApplyAssignmentRequest(epoch=1, models=[assigned(small_bundle, "m"), assigned(small_bundle, "m")]),
    )
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "'m'" in error.details()


def test_a_worker_without_an_operator_takes_no_assignment(config_for, start):
    worker = start(config_for())
    error = refused(worker.control.ApplyAssignment, pb.ApplyAssignmentRequest())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no operator" in error.details()


def test_headers_are_inspected_without_building(worker, small_bundle, tmp_path):
    found = worker.control.Inspect(pb.InspectRequest(uri=f"file://{small_bundle.path}"))
    assert found.digest == small_bundle.digest
    assert found.weights_bytes == small_bundle.layout.nbytes
    assert found.tensors == 2
    assert found.programs == 2
    assert set(found.platforms) == {"cpu", "cuda"}
    missing = refused(worker.control.Inspect, pb.InspectRequest(uri=f"file://{tmp_path / 'no'}"))
    assert missing.code() == grpc.StatusCode.NOT_FOUND
    assert reason_of(missing) == "SourceNotFound"
    assert missing.details().startswith("SourceNotFound: ")
    other = refused(
        worker.control.Inspect, pb.InspectRequest(uri=f"file://{small_bundle.path}", digest="sha256:" + "0" * 64)
    )
    assert other.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(other) == "SourceChanged"
    assert other.details().startswith("SourceChanged: ")


def test_a_store_that_hangs_holds_no_caller_beyond_its_deadline(worker, small_bundle, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(lineup, "inspect", lambda *_: answers.wait(60))
    try:
        found = worker.worker.desk.inspect(f"file://{small_bundle.path}", "", timeout=0.0)
    finally:
        answers.set()
    assert found.reason is Reason.DEADLINE_EXCEEDED


def test_a_place_for_a_watcher_is_free_again_when_one_has_gone(worker):
    streams = [worker.control.Watch(pb.WatchRequest()) for _ in range(MAX_WATCHERS)]
    for stream in streams:
        next(stream)
    error = refused(lambda _: next(worker.control.Watch(pb.WatchRequest())), None)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()
    while True:  # the server notices within a heartbeat
        try:
            next(worker.control.Watch(pb.WatchRequest()))
        except grpc.RpcError:
            continue
        break


@pytest.fixture
def fragmented(worker, tmp_path):
    """Five models of 4 MiB on the device, then the second and fourth are gone: free memory is in pieces."""
    bundles = [pack_small(tmp_path / name, mebibytes=4, factor=i) for i, name in enumerate("abcde", start=1)]
    pinned = [assigned(bundle, residency=pb.RESIDENCY_DEVICE) for bundle in bundles]
    worker.assign(*pinned)
    worker.until(lambda state: sum(m.phase == pb.MODEL_PHASE_LOADED for m in state.models) == 5)
    worker.assign(pinned[0], pinned[2], pinned[4], generation=2)
    worker.until(lambda state: len(state.models) == 3 and state.device.free_bytes > state.device.largest_free_bytes)
    return worker


def test_compaction_by_moving_makes_one_block_and_drops_nothing(fragmented):
    result = fragmented.control.CompactMemory(pb.CompactMemoryRequest(epoch=1, mode=pb.COMPACTION_MODE_MOVE))
    assert result.fragmentation_before > 0
    assert result.fragmentation_after == 0
    assert result.moved_bytes > 0
    assert result.largest_free_after > result.largest_free_before
    assert fragmented.infer("c") == [3.0, 6.0, 9.0, 12.0]
    state = fragmented.until(lambda state: state.device.largest_free_bytes == state.device.free_bytes)
    assert all(m.phase == pb.MODEL_PHASE_LOADED for m in state.models)
    assert fragmented.metric("worker_device_memory_fragmentation") == 0
    assert fragmented.metric("worker_compaction_moved_bytes_total") == result.moved_bytes


def test_a_compaction_that_was_asked_for_is_told_in_the_log(fragmented, caplog):
    with caplog.at_level(logging.DEBUG, logger="ballast_worker"):
        result = fragmented.control.CompactMemory(pb.CompactMemoryRequest(epoch=1, mode=pb.COMPACTION_MODE_FREE))
        fragmented.until_log(caplog, "memory.compacted")
    [line] = [record for record in caplog.records if getattr(record, "event", "") == "memory.compacted"]
    assert line.mode == "free"
    assert line.largest_free_before == result.largest_free_before
    assert line.largest_free_after == result.largest_free_after


def test_loads_and_evictions_are_told_at_debug(config_for, start, tmp_path, caplog):
    bundles = [pack_small(tmp_path / name, mebibytes=6, max_batch=1) for name in "ab"]
    worker = start(config_for(managed=True, device={"budget": "12m"}))
    with caplog.at_level(logging.DEBUG, logger="ballast_worker"):
        worker.assign(*map(assigned, bundles))
        worker.until(lambda state: len(state.models) == 2 and all(m.phase in CALLABLE for m in state.models))
        worker.infer("a")
        worker.infer("b")
        worker.infer("a")
    told = [(r.event, r.model, r.bytes) for r in caplog.records if getattr(r, "event", "").startswith("weight.")]
    assert ("weight.load", "a", bundles[0].layout.nbytes) in told
    assert ("weight.evict", "b", bundles[1].layout.nbytes) in told


def test_compaction_by_freeing_reloads_what_is_named(worker, tmp_path):
    bundles = [pack_small(tmp_path / name, mebibytes=4, factor=i) for i, name in enumerate("abc", start=1)]
    worker.assign(*(assigned(bundle) for bundle in bundles))
    worker.until(lambda state: sum(m.phase == pb.MODEL_PHASE_LOADED for m in state.models) == 3)
    result = worker.control.CompactMemory(
        pb.CompactMemoryRequest(epoch=1, mode=pb.COMPACTION_MODE_FREE, reload_models=["b", "unknown"])
    )
    assert list(result.reloaded) == ["b"]
    assert [verdict.name for verdict in result.not_reloaded] == ["unknown"]
    assert result.resident_bytes_after == bundles[1].layout.nbytes
    assert worker.infer("a") == [1.0, 2.0, 3.0, 4.0]


def test_a_mode_is_asked_for(worker):
    error = refused(worker.control.CompactMemory, pb.CompactMemoryRequest())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_wish_holds_until_the_next_assignment(worker, small_bundle):
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    answer = worker.control.SetModelResidency(
        pb.SetModelResidencyRequest(epoch=1, name="m", residency=pb.RESIDENCY_DEVICE)
    )
    assert answer.model.residency == pb.RESIDENCY_DEVICE
    worker.until(lambda state: state.device.pinned_bytes == small_bundle.layout.nbytes)
    worker.assign(assigned(small_bundle, "m"), generation=2)
    worker.until(lambda state: state.device.pinned_bytes == 0 and state.models[0].residency == pb.RESIDENCY_UNPINNED)


def test_a_wish_outlives_the_looks_at_configuration_and_folder(config_for, start, small_bundle):
    models = [{"name": name, "uri": f"file://{small_bundle.path}"} for name in ("m", "other")]
    worker = start(config_for(models=models), scan_seconds=0.0)  # at every turn of the loop
    worker.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    for name in ("m", *["other"] * 3):  # each goes through the loop, which then turns
        request = pb.SetModelResidencyRequest(name=name, residency=pb.RESIDENCY_DEVICE)
        assert worker.control.SetModelResidency(request).model.residency == pb.RESIDENCY_DEVICE
    assert worker.worker.desk.model_state("m").residency == pb.RESIDENCY_DEVICE


def test_a_wish_for_a_model_that_is_not_served_is_not_found(worker):
    request = pb.SetModelResidencyRequest(name="m", residency=pb.RESIDENCY_DEVICE)
    assert refused(worker.control.SetModelResidency, request).code() == grpc.StatusCode.NOT_FOUND


def test_routes_are_held_by_version(worker):
    endpoint = pb.Endpoint(worker="other", host="127.0.0.1", http_port=1, grpc_port=2)
    table = pb.RouteTable(version=4, routes=[pb.Route(model="far", workers=[endpoint])])
    assert worker.assign(routes=table).route_version == 4
    assert worker.assign(routes=pb.RouteTable(version=9, base_version=8)).route_version == 4


def test_a_watcher_resumes_across_a_broken_connection(worker, small_bundle):
    first = next(iter(worker.control.Watch(pb.WatchRequest())))
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", *CALLABLE)
    resumed = next(iter(worker.control.Watch(pb.WatchRequest(instance_id=first.instance_id, sequence=first.sequence))))
    assert resumed.WhichOneof("event") in ("change", "full")
    assert resumed.sequence == first.sequence + 1


def test_introspection_tells_plan_map_models_and_decisions(worker, small_bundle):
    worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    plan = json.loads(worker.page("/plan")[1])
    assert sum(int(line["bytes"]) for line in plan["lines"]) == int(plan["budget_bytes"])
    (extent,) = json.loads(worker.page("/map")[1])["extents"]
    assert (extent["model"], extent["bytes"], extent["pinned"]) == ("m", small_bundle.layout.nbytes, True)
    (model,) = json.loads(worker.page("/models")[1])
    assert model["tier"] == "TIER_DEVICE"
    assert json.loads(worker.page("/explain?model=m&limit=1")[1])[0]["model"] == "m"
    assert worker.page("/explain?limit=-3") == (400, "limit is '-3': it is a number of decisions\n")
    assert worker.page("/nothing")[0] == 404
