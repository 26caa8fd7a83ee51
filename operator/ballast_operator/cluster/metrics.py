# SPDX-License-Identifier: Apache-2.0
"""Metrics of the API client and the work queue."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ClusterMetrics:
    """Counters of one operator process; labels are verbs, kinds and codes, never names of objects."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.api_seconds = Histogram(
            "ballast_operator_api_request_seconds",
            "Duration of calls to the API server, retries counted one by one",
            ("verb", "resource", "code"),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.write_wait_seconds = Histogram(
            "ballast_operator_api_write_wait_seconds",
            "Time that writes wait for the operator's own rate limit",
            ("priority",),
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60),
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "ballast_operator_reconcile_seconds",
            "Duration of one reconciliation",
            ("kind", "result"),
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.queue_depth = Gauge(
            "ballast_operator_queue_depth", "Keys that are due or overdue and not being worked on", registry=registry
        )
        self.queue_retries = Counter(
            "ballast_operator_reconcile_failures_total",
            "Reconciliations that ended in an error",
            ("kind",),
            registry=registry,
        )
        self.swept = Counter(
            "ballast_operator_cache_swept_total",
            "Objects that a list showed to differ from what the watch had told",
            ("resource",),
            registry=registry,
        )
        self.cached = Gauge(
            "ballast_operator_cache_objects", "Objects in the operator's caches", ("resource",), registry=registry
        )
