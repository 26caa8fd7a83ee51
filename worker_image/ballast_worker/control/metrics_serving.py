# SPDX-License-Identifier: Apache-2.0
"""Metrics of what is served: models, their calls, and calls that were passed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ballast_worker.control.metrics_families import by_model, gauge
from ballast_worker.control.observed import BOUNDS, Requests
from ballast_worker.control.report import WorkerView, max_batch
from ballast_worker.serving.forwarded import Forwarded

_LOADS: Final = (
    ("worker_dispatch_total", "Executions", "dispatches"),
    ("worker_compute_seconds_total", "Seconds inside executions, without waits and loads", "compute_seconds"),
    ("worker_requests_served_total", "Requests that were executed", "requests"),
    ("worker_rows_served_total", "Rows that were executed", "rows"),
)


def models(view: WorkerView) -> Iterator[Metric]:
    """What is served, and what each model has executed."""
    served = {name: model for name, model in view.models.items() if model.serving is not None}
    yield gauge("worker_models_assigned", "Models that this worker is to serve", len(view.models))
    yield gauge("worker_models_loaded", "Models that would be answered, after a load if need be", len(served))
    weights = {n: m.serving.bundle.layout.nbytes for n, m in served.items() if m.serving is not None}
    scratch = {n: m.serving.scratch_bytes for n, m in served.items() if m.serving is not None}
    yield by_model(GaugeMetricFamily, "worker_model_weight_bytes", "Weights as packed", weights)
    yield by_model(GaugeMetricFamily, "worker_model_scratch_bytes", "The most scratch that one run takes", scratch)
    if scratch:
        yield gauge("worker_weight_cache_max_scratch_bytes", "Of all models, the most", max(scratch.values()))
    yield by_model(
        GaugeMetricFamily,
        "worker_model_max_batch_size",
        "Rows put together at most; 1 means requests run one by one",
        {name: max_batch(model) for name, model in served.items()},
    )
    for name, text, field in _LOADS:
        values = {model: getattr(load, field) for model, load in (view.loads or {}).items()}
        yield by_model(CounterMetricFamily, name, text, values)
    yield by_model(
        GaugeMetricFamily,
        "worker_queue_depth",
        "Requests that wait",
        {model: load.queued for model, load in (view.loads or {}).items()},
    )
    waits = GaugeMetricFamily("worker_queue_wait_seconds", "Waits of the last requests", labels=["model", "quantile"])
    for model, load in sorted((view.loads or {}).items()):
        if load.requests:
            waits.add_metric([model, "0.5"], load.queue_wait_p50)
            waits.add_metric([model, "0.99"], load.queue_wait_p99)
    yield waits


def requests(observed: Mapping[str, Requests] | None, inflight: int) -> Iterator[Metric]:
    """Calls of each model, and how many are under way."""
    if observed is None:
        return
    yield gauge("worker_inflight_requests", "Requests under way", inflight)
    total = CounterMetricFamily("worker_requests", "Requests by result: ok, or a reason", labels=["model", "status"])
    latency = HistogramMetricFamily(
        "worker_request_latency_seconds", "From the queue to the answer, loads included", labels=["model"]
    )
    for model, found in sorted(observed.items()):
        for status, count in sorted(found.statuses.items()):
            total.add_metric([model, status], count)
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        latency.add_metric([model], list(zip(bounds, accumulate(found.buckets), strict=True)), found.seconds)
    yield total
    yield latency


def forwarded(counted: Forwarded | None) -> Iterator[Metric]:
    """Calls that went on to other workers."""
    if counted is None:
        return
    total = CounterMetricFamily(
        "worker_forwarded_requests",
        "Requests passed on to another worker: answered, lost (it ended), late (no answer in time), left (the client)",
        labels=["protocol", "result"],
    )
    for labels, count in counted.requests.items():
        total.add_metric(labels, count)
    yield total
    nbytes = CounterMetricFamily(
        "worker_forwarded_bytes", "Bytes of bodies passed on: request or answer", labels=["protocol", "direction"]
    )
    for labels, count in counted.nbytes.items():
        nbytes.add_metric(labels, count)
    yield nbytes
