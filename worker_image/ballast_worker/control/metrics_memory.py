# SPDX-License-Identifier: Apache-2.0
"""Metrics of memory: the plan, the device's, who is resident there, and the host's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ballast_worker.control.metrics_families import by_model, counter, gauge
from ballast_worker.control.report import WorkerView
from ballast_worker.residency.protocol import Tier


def plan(view: WorkerView) -> Iterator[Metric]:
    """The plans of device and host memory in force, or refused."""
    if view.plan is None:
        return
    lines = GaugeMetricFamily("worker_plan_bytes", "Lines of the device memory plan", labels=["line"])
    for line in view.plan.lines:
        lines.add_metric([line.name], line.nbytes)
    yield lines
    yield gauge("worker_plan_budget_bytes", "Device memory of the whole process", view.plan.budget)
    yield gauge("worker_plan_fits", "1 when the plan fits its budget", view.plan.fits)
    yield gauge("worker_plan_shortfall_bytes", "What the budget lacks", view.plan.shortfall)
    if view.host_plan is not None:
        host_lines = GaugeMetricFamily("worker_host_plan_bytes", "Lines of the host memory plan", labels=["line"])
        for line in view.host_plan.lines:
            host_lines.add_metric([line.name], line.nbytes)
        yield host_lines
        yield gauge(
            "worker_host_plan_shortfall_bytes",
            "What the memory limit or the shared memory lacks",
            view.host_plan.shortfall,
        )
    if view.driver_used is not None:
        yield gauge(
            "worker_device_memory_process_used_bytes", "Of this process, as the driver counts", view.driver_used
        )


def device(view: WorkerView, pool: tuple[int, int, int] | None) -> Iterator[Metric]:
    """Device memory: of XLA's pool (bytes, in use, peak), and for weights."""
    if pool is not None:
        yield gauge("worker_device_memory_pool_bytes", "Of the XLA pool", pool[0])
        yield gauge("worker_device_memory_pool_in_use_bytes", "Of the XLA pool, in use", pool[1])
        yield gauge("worker_device_memory_peak_in_use_bytes", "Of the XLA pool, at most so far", pool[2])
    if view.memory is None:
        return
    memory = view.memory
    yield gauge("worker_device_memory_limit_bytes", "For weights in all", memory.capacity)
    yield gauge("worker_device_memory_in_use_bytes", "Held by weights", memory.in_use)
    yield gauge("worker_device_memory_free_bytes", "Free for weights", memory.free)
    yield gauge("worker_device_memory_largest_free_block_bytes", "Of the largest free block", memory.largest_free)
    yield gauge(
        "worker_device_memory_fragmentation",
        "1 - largest free block / free; 0 when the free memory is one block",
        memory.fragmentation,
    )
    yield gauge(
        "worker_device_memory_foreseen",
        "1 when admission knows where weights will lie; 0 when XLA's allocator did otherwise and free bytes alone count",
        memory.foreseen,
    )
    yield counter(
        "worker_device_memory_leaked_bytes_total",
        "That came to be in use in XLA's allocator and are held by no weights and no execution",
        memory.leaked_total,
    )
    yield gauge("worker_weight_pool_bytes", "For weights in all", memory.capacity)
    yield gauge("worker_resident_weight_bytes", "Held by weights", memory.in_use)
    yield gauge("worker_weight_cache_pinned_bytes", "Weights that are always on the device", memory.pinned)
    yield gauge("worker_weight_cache_resident_bytes", "Weights that may go", memory.in_use - memory.pinned)
    yield gauge("worker_weight_cache_max_bytes", "For weights that may go", memory.capacity - memory.pinned)


def residency(view: WorkerView) -> Iterator[Metric]:
    """Which weights are on the device, and what loads and evictions cost."""
    if view.residency is None:
        return
    found = view.residency
    models = {model.name: model for model in found.models}
    resident = {name: float(model.tier is Tier.DEVICE) for name, model in models.items()}
    yield by_model(GaugeMetricFamily, "worker_model_resident", "1 when the weights are on the device", resident)
    yield by_model(
        GaugeMetricFamily,
        "worker_model_pinned",
        "1 when the weights are to stay on the device",
        {name: float(model.wish.value == "device") for name, model in models.items()},
    )
    yield by_model(
        GaugeMetricFamily,
        "worker_model_load_seconds",
        "Of the last load, decision to callable",
        {name: model.load_seconds for name, model in models.items() if model.load_seconds is not None},
    )
    yield by_model(
        CounterMetricFamily,
        "worker_model_evictions_total",
        "Times the weights left the device to make room",
        {name: model.evictions for name, model in models.items()},
    )
    yield gauge("worker_models_resident", "Models whose weights are on the device", sum(resident.values()))
    yield counter("worker_weight_loads_total", "Loads", found.loads)
    yield counter("worker_weight_load_seconds_total", "Seconds of loads", found.load_seconds)
    yield counter(
        "worker_weight_load_wait_seconds_total", "Of those, waiting for a thread or for room", found.load_wait_seconds
    )
    yield counter("worker_weight_load_bytes_total", "Bytes of loads", found.load_bytes)
    yield counter("worker_weight_evicts_total", "Evictions", found.evictions)
    if found.eviction_age_seconds is not None:
        yield gauge(
            "worker_weight_eviction_age_seconds",
            "How long the model evicted last had been idle: low means thrash",
            found.eviction_age_seconds,
        )
    yield counter(
        "worker_weight_admission_failures_total", "Loads that no room could be found for", found.admission_failures
    )
    yield counter(
        "worker_weight_fallback_compactions_total",
        "Compactions that a load needed: all that may go was freed for it",
        found.fallback_compactions,
    )
    yield counter("worker_compactions_total", "Compactions", found.compactions)
    yield counter(
        "worker_compaction_moved_bytes_total",
        "Bytes moved on the device, for a load or a compaction",
        found.moved_bytes,
    )
    yield counter("worker_compaction_seconds_total", "Seconds in which these bytes moved", found.compaction_seconds)
    yield gauge(
        "worker_weight_largest_waiting_bytes",
        "The largest model that waits for room, or was refused it",
        found.largest_waiting_bytes,
    )


def host(view: WorkerView) -> Iterator[Metric]:
    """Host memory: copies of weights."""
    found = view.host
    if found is None:
        return
    if found.budget is not None:
        yield gauge("worker_host_weight_budget_bytes", "For host copies", found.budget)
    yield gauge("worker_host_weight_cached_bytes", "Of host copies", found.cached)
    yield gauge(
        "worker_host_weight_excess_bytes",
        "Beyond the budget, for copies that are kept or in transfer",
        found.excess,
    )
    states = GaugeMetricFamily(
        "worker_host_weight_bytes",
        "Of the host pool: of copies (live), of copies that are being read (filling) or copied from (in transfer), free",
        labels=["state"],
    )
    for state, nbytes in asdict(found.nbytes).items():
        states.add_metric([state.replace("_", " ")], nbytes)
    yield states
    yield counter("worker_host_weight_hits_total", "Loads that found a host copy", found.hits)
    yield counter("worker_host_weight_misses_total", "Loads that read the file", found.misses)
    yield counter("worker_host_weight_fills_total", "Of those, loads that made a host copy", found.fills)
    yield counter(
        "worker_host_weight_fallbacks_total", "Loads that were streamed because no room was free", found.fallbacks
    )
    yield counter(
        "worker_host_weight_swept_regions_total",
        "Copies that killed workers had left half read, freed by this one",
        found.swept_regions,
    )
    yield counter(
        "worker_host_weight_swept_bytes_total",
        "Bytes that killed workers had left, freed by this one",
        found.swept_bytes,
    )
