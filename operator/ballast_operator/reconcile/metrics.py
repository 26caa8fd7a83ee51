# SPDX-License-Identifier: Apache-2.0
"""Metrics of what the operator decides."""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ReconcileMetrics:
    """Counters and gauges by pool, and one gauge by model; what is gone has no gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("namespace", "budget")
        self.repacks = Counter(
            "ballast_operator_repacks_total", "Placements of models on workers", (*labels, "trigger"), registry=registry
        )
        self.models_moved = Counter(
            "ballast_operator_models_moved_total", "Models whose workers a placement changed", labels, registry=registry
        )
        self.compactions = Counter(
            "ballast_operator_compactions_total",
            "Compactions of workers",
            (*labels, "mode", "result"),
            registry=registry,
        )
        self.compaction_seconds = Histogram(
            "ballast_operator_compaction_seconds",
            "Duration of a compaction of a worker, until all its models can be called",
            labels,
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300),
            registry=registry,
        )
        self.models = Gauge("ballast_operator_models", "InferenceModels of a pool", labels, registry=registry)
        self.model_ready = Gauge(
            "ballast_operator_model_ready",
            "1 when the condition Ready of an InferenceModel is True, else 0",
            ("namespace", "name"),
            registry=registry,
        )
        self.workers = Gauge(
            "ballast_operator_workers",
            "Worker pods of a pool, by state: ready, starting, refused, stale or terminating",
            (*labels, "state"),
            registry=registry,
        )
        self.host_fallbacks = Gauge(
            "ballast_operator_workers_without_host_copies",
            "Workers that answer calls and cannot keep host copies as they should: reason ShmFallback",
            labels,
            registry=registry,
        )
        self.status_writes = Counter(
            "ballast_operator_status_writes_total", "Statuses written", ("kind", "urgency"), registry=registry
        )
        self.events = Counter(
            "ballast_operator_events_total",
            "Events by what became of them: posted, superseded by a newer one while it waited, refused by the API server, or "
            "left over when the process ended",
            ("result",),
            registry=registry,
        )
        self.events_waiting = Gauge(
            "ballast_operator_events_waiting", "Events that wait for their turn to be posted", registry=registry
        )

    def forget_model(self, namespace: str, name: str) -> None:
        """Drop the series of a model that is gone."""
        with contextlib.suppress(KeyError):
            self.model_ready.remove(namespace, name)

    def forget(self, namespace: str, budget: str) -> None:
        """Drop the gauges of a pool that is gone."""
        for gauge in (self.models, self.workers, self.host_fallbacks):
            for labels in [s.labels for metric in gauge.collect() for s in metric.samples]:
                if labels.get("namespace") == namespace and labels.get("budget") == budget:
                    gauge.remove(*labels.values())
