# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: made from snapshots when they are scraped; what is not known is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from ballast_worker.control.http import Request, Response
from ballast_worker.control.observed import BOUNDS, Requests
from ballast_worker.control.report import Phase, WorkerView, max_batch
from ballast_worker.residency.protocol import Tier
from ballast_worker.serving.forwarded import Forwarded


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one scrape is made from.

    Attributes:
        view: as reported on the control channel.
        ordinal: of the device.
        managed: an operator assigns the models.
        requests: of each model; None before anything is served.
        inflight: calls under way.
        builds: finished builds by result: built, stored (nothing had to be compiled) or failed.
        pool: the XLA pool's own figures, where the runtime keeps them: bytes, in use, peak.
        refused: callers of the control service that were not heard, by reason.
        forwarded: what was passed on to other workers; None before anything is served.
    """

    view: WorkerView
    ordinal: int
    managed: bool
    requests: Mapping[str, Requests] | None = None
    inflight: int = 0
    builds: Mapping[str, int] | None = None
    pool: tuple[int, int, int] | None = None
    refused: Mapping[str, int] | None = None
    forwarded: Forwarded | None = None


class WorkerCollector(Collector):
    """One scrape of a worker."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Every metric of this moment."""
        snapshot = self._snapshot()
        view = snapshot.view
        info = GaugeMetricFamily(
            "worker_info",
            "Always 1; what this worker is",
            labels=["worker", "backend", "device_kind", "device_ordinal", "control_mode"],
        )
        mode = "managed" if snapshot.managed else "standalone"
        info.add_metric([view.name, view.backend, view.device_kind, str(snapshot.ordinal), mode], 1)
        yield info
        yield _gauge(
            "worker_ready", "1 when the plan is accepted and calls are taken", view.condition.phase is Phase.READY
        )
        yield from _models(view)
        yield from _requests(snapshot)
        yield from _forwarded(snapshot.forwarded)
        yield from _plan(view)
        yield from _memory(view, snapshot.pool)
        yield from _residency(view)
        yield from _host(view)
        if snapshot.builds is not None:
            builds = CounterMetricFamily("worker_builds", "Finished builds of bundles", labels=["result"])
            for result, count in sorted(snapshot.builds.items()):
                builds.add_metric([result], count)
            yield builds
        if snapshot.refused is not None:
            refused = CounterMetricFamily(
                "worker_control_refusals",
                "Control connections and calls that were not heard: handshake, name or epoch",
                labels=["reason"],
            )
            for reason, count in sorted(snapshot.refused.items()):
                refused.add_metric([reason], count)
            yield refused


def page(snapshot: Callable[[], Snapshot]) -> Callable[[Request], Response]:
    """The page /metrics."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(snapshot))
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)

    def answer(request: Request) -> Response:
        encode, content_type = choose_encoder(request.accept)
        return Response(encode(registry), content_type)

    return answer


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=float(value))


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(name.removesuffix("_total"), documentation, value=float(value))


def _by_model(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, values: Mapping[str, float]
) -> Metric:
    family = kind(name.removesuffix("_total"), text, labels=["model"])
    for model, value in sorted(values.items()):
        family.add_metric([model], value)
    return family


_LOADS: Final = (
    ("worker_dispatch_total", "Executions", "dispatches"),
    ("worker_compute_seconds_total", "Seconds inside executions, without waits and loads", "compute_seconds"),
    ("worker_requests_served_total", "Requests that were executed", "requests"),
    ("worker_rows_served_total", "Rows that were executed", "rows"),
)


def _models(view: WorkerView) -> Iterator[Metric]:
    served = {name: model for name, model in view.models.items() if model.serving is not None}
    yield _gauge("worker_models_assigned", "Models that this worker is to serve", len(view.models))
    yield _gauge("worker_models_loaded", "Models that would be answered, after a load if need be", len(served))
    weights = {n: m.serving.bundle.layout.nbytes for n, m in served.items() if m.serving is not None}
    scratch = {n: m.serving.scratch_bytes for n, m in served.items() if m.serving is not None}
    yield _by_model(GaugeMetricFamily, "worker_model_weight_bytes", "Weights as packed", weights)
    yield _by_model(GaugeMetricFamily, "worker_model_scratch_bytes", "The most scratch that one run takes", scratch)
    if scratch:
        yield _gauge("worker_weight_cache_max_scratch_bytes", "Of all models, the most", max(scratch.values()))
    yield _by_model(
        GaugeMetricFamily,
        "worker_model_max_batch_size",
        "Rows put together at most; 1 means requests run one by one",
        {name: max_batch(model) for name, model in served.items()},
    )
    for name, text, field in _LOADS:
        values = {model: getattr(load, field) for model, load in (view.loads or {}).items()}
        yield _by_model(CounterMetricFamily, name, text, values)
    yield _by_model(
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


def _requests(snapshot: Snapshot) -> Iterator[Metric]:
    if snapshot.requests is None:
        return
    yield _gauge("worker_inflight_requests", "Requests under way", snapshot.inflight)
    total = CounterMetricFamily("worker_requests", "Requests by result: ok, or a reason", labels=["model", "status"])
    latency = HistogramMetricFamily(
        "worker_request_latency_seconds", "From the queue to the answer, loads included", labels=["model"]
    )
    for model, requests in sorted(snapshot.requests.items()):
        for status, count in sorted(requests.statuses.items()):
            total.add_metric([model, status], count)
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        latency.add_metric([model], list(zip(bounds, accumulate(requests.buckets), strict=True)), requests.seconds)
    yield total
    yield latency


def _forwarded(forwarded: Forwarded | None) -> Iterator[Metric]:
    if forwarded is None:
        return
    requests = CounterMetricFamily(
        "worker_forwarded_requests",
        "Requests passed on to another worker: answered, lost (it ended), late (no answer in time), left (the client)",
        labels=["protocol", "result"],
    )
    for labels, count in forwarded.requests.items():
        requests.add_metric(labels, count)
    yield requests
    nbytes = CounterMetricFamily(
        "worker_forwarded_bytes", "Bytes of bodies passed on: request or answer", labels=["protocol", "direction"]
    )
    for labels, count in forwarded.nbytes.items():
        nbytes.add_metric(labels, count)
    yield nbytes


def _plan(view: WorkerView) -> Iterator[Metric]:
    if view.plan is None:
        return
    lines = GaugeMetricFamily("worker_plan_bytes", "Lines of the device memory plan", labels=["line"])
    for line in view.plan.lines:
        lines.add_metric([line.name], line.nbytes)
    yield lines
    yield _gauge("worker_plan_budget_bytes", "Device memory of the whole process", view.plan.budget)
    yield _gauge("worker_plan_fits", "1 when the plan fits its budget", view.plan.fits)
    yield _gauge("worker_plan_shortfall_bytes", "What the budget lacks", view.plan.shortfall)
    if view.driver_used is not None:
        yield _gauge(
            "worker_device_memory_process_used_bytes", "Of this process, as the driver counts", view.driver_used
        )


def _memory(view: WorkerView, pool: tuple[int, int, int] | None) -> Iterator[Metric]:
    if pool is not None:
        yield _gauge("worker_device_memory_pool_bytes", "Of the XLA pool", pool[0])
        yield _gauge("worker_device_memory_pool_in_use_bytes", "Of the XLA pool, in use", pool[1])
        yield _gauge("worker_device_memory_peak_in_use_bytes", "Of the XLA pool, at most so far", pool[2])
    if view.memory is None:
        return
    memory = view.memory
    yield _gauge("worker_device_memory_limit_bytes", "For weights in all", memory.capacity)
    yield _gauge("worker_device_memory_in_use_bytes", "Held by weights", memory.in_use)
    yield _gauge("worker_device_memory_free_bytes", "Free for weights", memory.free)
    yield _gauge("worker_device_memory_largest_free_block_bytes", "Of the largest free block", memory.largest_free)
    yield _gauge(
        "worker_device_memory_fragmentation",
        "1 - largest free block / free; 0 when the free memory is one block",
        memory.fragmentation,
    )
    yield _gauge(
        "worker_device_memory_foreseen",
        "1 when admission knows where weights will lie; 0 when XLA's allocator did otherwise and free bytes alone count",
        memory.foreseen,
    )
    yield _gauge("worker_weight_pool_bytes", "For weights in all", memory.capacity)
    yield _gauge("worker_resident_weight_bytes", "Held by weights", memory.in_use)
    yield _gauge("worker_weight_cache_pinned_bytes", "Weights that are always on the device", memory.pinned)
    yield _gauge("worker_weight_cache_resident_bytes", "Weights that may go", memory.in_use - memory.pinned)
    yield _gauge("worker_weight_cache_max_bytes", "For weights that may go", memory.capacity - memory.pinned)


def _residency(view: WorkerView) -> Iterator[Metric]:
    if view.residency is None:
        return
    found = view.residency
    models = {model.name: model for model in found.models}
    resident = {name: float(model.tier is Tier.DEVICE) for name, model in models.items()}
    yield _by_model(GaugeMetricFamily, "worker_model_resident", "1 when the weights are on the device", resident)
    yield _by_model(
        GaugeMetricFamily,
        "worker_model_pinned",
        "1 when the weights are to stay on the device",
        {name: float(model.wish.value == "device") for name, model in models.items()},
    )
    yield _by_model(
        GaugeMetricFamily,
        "worker_model_load_seconds",
        "Of the last load, decision to callable",
        {name: model.load_seconds for name, model in models.items() if model.load_seconds is not None},
    )
    yield _by_model(
        CounterMetricFamily,
        "worker_model_evictions_total",
        "Times the weights left the device to make room",
        {name: model.evictions for name, model in models.items()},
    )
    yield _gauge("worker_models_resident", "Models whose weights are on the device", sum(resident.values()))
    yield _counter("worker_weight_loads_total", "Loads", found.loads)
    yield _counter("worker_weight_load_seconds_total", "Seconds of loads", found.load_seconds)
    yield _counter(
        "worker_weight_load_wait_seconds_total", "Of those, waiting for a thread or for room", found.load_wait_seconds
    )
    yield _counter("worker_weight_load_bytes_total", "Bytes of loads", found.load_bytes)
    yield _counter("worker_weight_evicts_total", "Evictions", found.evictions)
    if found.eviction_age_seconds is not None:
        yield _gauge(
            "worker_weight_eviction_age_seconds",
            "How long the model evicted last had been idle: low means thrash",
            found.eviction_age_seconds,
        )
    yield _counter(
        "worker_weight_admission_failures_total", "Loads that no room could be found for", found.admission_failures
    )
    yield _counter(
        "worker_weight_fallback_compactions_total", "Compactions that a load needed", found.fallback_compactions
    )
    yield _counter("worker_compactions_total", "Compactions", found.compactions)
    yield _counter("worker_compaction_moved_bytes_total", "Bytes that compactions moved", found.moved_bytes)
    yield _counter("worker_compaction_seconds_total", "Seconds of compactions", found.compaction_seconds)
    yield _gauge(
        "worker_weight_largest_waiting_bytes",
        "The largest model that waits for room, or was refused it",
        found.largest_waiting_bytes,
    )


def _host(view: WorkerView) -> Iterator[Metric]:
    host = view.host
    if host is None:
        return
    if host.budget is not None:
        yield _gauge("worker_host_weight_budget_bytes", "For host copies", host.budget)
    yield _gauge("worker_host_weight_cached_bytes", "Of host copies", host.cached)
    yield _gauge(
        "worker_host_weight_excess_bytes",
        "Beyond the budget, for copies that are kept or in transfer",
        host.excess,
    )
    states = GaugeMetricFamily(
        "worker_host_weight_bytes",
        "Of the host pool: of copies (live), of copies that are being read (filling) or copied from (in transfer), free",
        labels=["state"],
    )
    for state, nbytes in asdict(host.nbytes).items():
        states.add_metric([state.replace("_", " ")], nbytes)
    yield states
    yield _counter("worker_host_weight_hits_total", "Loads that found a host copy", host.hits)
    yield _counter("worker_host_weight_misses_total", "Loads that read the file", host.misses)
    yield _counter("worker_host_weight_fills_total", "Of those, loads that made a host copy", host.fills)
    yield _counter(
        "worker_host_weight_fallbacks_total", "Loads that were streamed because no room was free", host.fallbacks
    )
    yield _counter(
        "worker_host_weight_swept_regions_total",
        "Copies that killed workers had left half read, freed by this one",
        host.swept_regions,
    )
    yield _counter(
        "worker_host_weight_swept_bytes_total",
        "Bytes that killed workers had left, freed by this one",
        host.swept_bytes,
    )
