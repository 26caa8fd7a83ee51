# SPDX-License-Identifier: Apache-2.0
"""Metrics of what the operator decides."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ReconcileMetrics:
    """Counters and gauges by pool; a pool that is gone leaves its series."""

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
        self.models_ready = Gauge(
            "ballast_operator_models_ready",
            "InferenceModels of a pool whose condition Ready is True",
            labels,
            registry=registry,
        )
        self.workers = Gauge(
            "ballast_operator_workers",
            "Worker pods of a pool, by state: ready, starting, refused, stale or terminating",
            (*labels, "state"),
            registry=registry,
        )
        self.status_writes = Counter(
            "ballast_operator_status_writes_total", "Statuses written", ("kind", "urgency"), registry=registry
        )

    def forget(self, namespace: str, budget: str) -> None:
        """Drop the gauges of a pool that is gone."""
        for gauge in (self.models, self.models_ready, self.workers):
            for labels in [s.labels for metric in gauge.collect() for s in metric.samples]:
                if labels.get("namespace") == namespace and labels.get("budget") == budget:
                    gauge.remove(*labels.values())
