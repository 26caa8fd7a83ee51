# SPDX-License-Identifier: Apache-2.0
"""Metrics say what was observed; what is not known is absent."""

from __future__ import annotations

import http.client

import pytest
from helpers.running_worker import assigned
from prometheus_client.parser import text_string_to_metric_families

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import metrics_memory
from ballast_worker.control.report import Condition, WorkerView
from ballast_worker.device.memory import Statistics
from ballast_worker.residency.protocol import ResidencySnapshot

ALWAYS = {"worker_info", "worker_ready", "worker_models_assigned", "worker_models_loaded"}
SERVING = {
    "worker_plan_bytes",
    "worker_host_plan_bytes",
    "worker_host_plan_shortfall_bytes",
    "worker_device_memory_fragmentation",
    "worker_device_memory_largest_free_block_bytes",
    "worker_device_memory_limit_bytes",
    "worker_weight_loads",
    "worker_weight_load_seconds",
    "worker_weight_load_bytes",
    "worker_weight_evicts",
    "worker_weight_admission_failures",
    "worker_weight_fallback_compactions",
    "worker_compaction_moved_bytes",
    "worker_compaction_seconds",
    "worker_host_weight_budget_bytes",
    "worker_host_weight_cached_bytes",
    "worker_host_weight_hits",
    "worker_host_weight_misses",
    "worker_host_weight_bytes",
    "worker_host_weight_excess_bytes",
    "worker_host_weight_fills",
    "worker_host_weight_fallbacks",
    "worker_host_weight_swept_regions",
    "worker_host_weight_swept_bytes",
    "worker_forwarded_requests",
    "worker_forwarded_bytes",
}


def families(worker):
    return {family.name: family for family in text_string_to_metric_families(worker.page("/metrics")[1])}


def value(worker, name, **labels):
    for family in families(worker).values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


@pytest.fixture
def worker(config_for, start):
    return start(config_for(managed=True))


def test_before_the_plan_nothing_is_said_of_memory(worker):
    found = families(worker)
    assert found.keys() >= ALWAYS
    assert not SERVING & found.keys()
    assert value(worker, "worker_ready") == 0
    assert value(worker, "worker_info", control_mode="managed") == 1
    assert not any(name.startswith("worker_device_memory_pool") for name in found)


def test_the_plan_is_a_gauge_per_line_and_sums_to_the_budget(worker):
    worker.assign()
    worker.worker.ready.wait(60)
    found = families(worker)
    assert found.keys() >= SERVING
    lines = {sample.labels["line"]: sample.value for sample in found["worker_plan_bytes"].samples}
    assert sum(lines.values()) == value(worker, "worker_plan_budget_bytes")
    assert {"context", "code", "scratch", "pinned weights", "on-demand weights", "slack"} <= lines.keys()
    host = {sample.labels["line"]: sample.value for sample in found["worker_host_plan_bytes"].samples}
    assert {"host pool", "copy ring", "arena", "process"} <= host.keys()
    assert host["host pool"] == value(worker, "worker_host_weight_budget_bytes")
    assert host["arena"] == lines["pinned weights"] + lines["on-demand weights"]
    assert value(worker, "worker_host_plan_shortfall_bytes") == 0
    assert value(worker, "worker_device_memory_process_used_bytes") is None, "the driver tells nothing on the CPU"


def test_requests_are_counted_by_result_and_timed(worker, small_bundle):
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    worker.infer("m")
    worker.infer("m")
    assert value(worker, "worker_requests_total", model="m", status="ok") == 2
    assert value(worker, "worker_request_latency_seconds_count", model="m") == 2
    assert value(worker, "worker_request_latency_seconds_bucket", model="m", le="+Inf") == 2
    assert value(worker, "worker_inflight_requests") == 0
    assert value(worker, "worker_dispatch_total", model="m") == 2
    assert value(worker, "worker_rows_served_total", model="m") == 2
    assert value(worker, "worker_compute_seconds_total", model="m") > 0
    assert value(worker, "worker_queue_wait_seconds", model="m", quantile="0.99") is not None
    assert value(worker, "worker_model_resident", model="m") == 1
    assert value(worker, "worker_model_pinned", model="m") == 0
    assert value(worker, "worker_model_weight_bytes", model="m") == small_bundle.layout.nbytes
    assert value(worker, "worker_model_load_seconds", model="m") > 0
    assert value(worker, "worker_model_max_batch_size", model="m") == 2


def test_a_removed_model_takes_its_series_along(worker, small_bundle):
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    assert value(worker, "worker_model_weight_bytes", model="m") is not None
    worker.assign(generation=2)
    worker.until(lambda state: not state.models and state.device.in_use_bytes == 0)
    assert value(worker, "worker_model_weight_bytes", model="m") is None
    assert value(worker, "worker_model_resident", model="m") is None


def test_an_unlimited_host_budget_is_no_number(config_for, start):
    worker = start(config_for(managed=True, host={"budget": "unlimited"}))
    worker.assign()
    worker.worker.ready.wait(60)
    assert value(worker, "worker_host_weight_budget_bytes") is None
    assert value(worker, "worker_host_weight_cached_bytes") == 0


def test_the_states_of_the_host_pool_sum_to_its_segments(config_for, start, small_bundle):
    worker = start(config_for(managed=True, host={"budget": "8m", "segment_bytes": "4m"}))
    worker.assign(assigned(small_bundle, "m"))
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
    states = {sample.labels["state"]: sample.value for sample in families(worker)["worker_host_weight_bytes"].samples}
    assert states == {"live": 2 << 20, "filling": 0, "in transfer": 0, "free": 6 << 20}
    assert value(worker, "worker_host_weight_fills_total") == 1


def test_scrapers_that_ask_for_it_get_open_metrics(worker):
    connection = http.client.HTTPConnection("127.0.0.1", worker.process.metrics_port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert response.read().endswith(b"# EOF\n")
    connection.close()


def test_every_figure_of_residency_and_of_its_memory_is_told_as_it_was_counted():
    view = WorkerView(
        name="w",
        backend="cpu",
        condition=Condition(),
        models={},
        memory=Statistics(1000, 300, 200, 350, leaked=7, leaked_total=9),
        residency=ResidencySnapshot(
            models=(),
            loads=1,
            load_seconds=2.5,
            load_bytes=3,
            evictions=4,
            admission_failures=5,
            fallback_compactions=6,
            compactions=7,
            moved_bytes=8,
            compaction_seconds=9.5,
            largest_waiting_bytes=10,
            load_wait_seconds=1.25,
            eviction_age_seconds=12.5,
        ),
    )
    told = [*metrics_memory.residency(view), *metrics_memory.device(view, None)]
    assert {sample.name: sample.value for family in told for sample in family.samples} == {
        "worker_models_resident": 0,
        "worker_weight_loads_total": 1,
        "worker_weight_load_seconds_total": 2.5,
        "worker_weight_load_wait_seconds_total": 1.25,
        "worker_weight_load_bytes_total": 3,
        "worker_weight_evicts_total": 4,
        "worker_weight_eviction_age_seconds": 12.5,
        "worker_weight_admission_failures_total": 5,
        "worker_weight_fallback_compactions_total": 6,
        "worker_compactions_total": 7,
        "worker_compaction_moved_bytes_total": 8,
        "worker_compaction_seconds_total": 9.5,
        "worker_weight_largest_waiting_bytes": 10,
        "worker_device_memory_limit_bytes": 1000,
        "worker_device_memory_in_use_bytes": 300,
        "worker_device_memory_free_bytes": 700,
        "worker_device_memory_largest_free_block_bytes": 350,
        "worker_device_memory_fragmentation": 0.5,
        "worker_device_memory_foreseen": 1,
        "worker_device_memory_leaked_bytes_total": 9,
        "worker_weight_pool_bytes": 1000,
        "worker_resident_weight_bytes": 300,
        "worker_weight_cache_pinned_bytes": 200,
        "worker_weight_cache_resident_bytes": 100,
        "worker_weight_cache_max_bytes": 800,
    }
