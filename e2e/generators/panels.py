# SPDX-License-Identifier: Apache-2.0
"""What the dashboards show, row by row.

In an expression `{W}` selects the chosen workers, `{N}` the chosen namespaces, and `[R]` is Grafana's own interval for rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Panel:
    """Series over time.

    Attributes:
        title: above it.
        series: expressions, each with the name of its series.
        unit: Grafana's, as in bytes or s.
        stacked: the series add up to something.
        kind: Grafana's type of panel.
        help: behind the title.
    """

    title: str
    series: Mapping[str, str]
    unit: str = "short"
    stacked: bool = False
    kind: str = "timeseries"
    help: str = ""


WORKERS: Final[Mapping[str, Sequence[Panel]]] = {
    "Where weights are": (
        Panel(
            "Device memory for weights",
            {
                "sum(worker_weight_cache_pinned_bytes{W})": "pinned",
                "sum(worker_weight_cache_resident_bytes{W})": "on demand",
                "sum(worker_device_memory_free_bytes{W})": "free",
            },
            unit="bytes",
            stacked=True,
        ),
        Panel(
            "Models",
            {
                "sum(worker_models_resident{W})": "on a device",
                "sum(worker_models_loaded{W})": "would be answered, after a load if need be",
                "sum(worker_models_assigned{W})": "assigned",
            },
        ),
        Panel(
            "Workers that have the model on the device",
            {"sum by (namespace, model) (worker_model_resident{W})": "{{namespace}}/{{model}}"},
            kind="state-timeline",
        ),
    ),
    "Loads and evictions": (
        Panel(
            "Loads and evictions",
            {
                "sum by (namespace, pod) (rate(worker_weight_loads_total{W}[R]))": "{{namespace}}/{{pod}} loads",
                "sum by (namespace, pod) (rate(worker_weight_evicts_total{W}[R]))": "{{namespace}}/{{pod}} evictions",
            },
            unit="ops",
        ),
        Panel(
            "Idle time of the model evicted last",
            {"worker_weight_eviction_age_seconds{W}": "{{namespace}}/{{pod}}"},
            unit="s",
            help="It stays until the next eviction. A few seconds, with many evictions, are thrash.",
        ),
        Panel(
            "Mean load",
            {
                "sum(rate(worker_weight_load_seconds_total{W}[R])) / sum(rate(worker_weight_loads_total{W}[R]))": "in all",
                "sum(rate(worker_weight_load_wait_seconds_total{W}[R])) / sum(rate(worker_weight_loads_total{W}[R]))": (
                    "of it, waiting for a thread or for room"
                ),
            },
            unit="s",
        ),
        Panel(
            "Bytes loaded",
            {"sum by (namespace, pod) (rate(worker_weight_load_bytes_total{W}[R]))": "{{namespace}}/{{pod}}"},
            unit="Bps",
        ),
        Panel(
            "Models evicted most",
            {
                "topk(10, sum by (namespace, model) (rate(worker_model_evictions_total{W}[R])))": (
                    "{{namespace}}/{{model}}"
                )
            },
            unit="ops",
        ),
        Panel(
            "Loads without room",
            {
                "sum by (namespace, pod) (increase(worker_weight_admission_failures_total{W}[R]))": "{{namespace}}/{{pod}}"
            },
        ),
    ),
    "Fragmentation": (
        Panel(
            "Fragmentation",
            {"worker_device_memory_fragmentation{W}": "{{namespace}}/{{pod}}"},
            unit="percentunit",
            help="1 - largest free block / free; 0 is one block.",
        ),
        Panel(
            "Largest free block, and the largest model that waits",
            {
                "worker_device_memory_largest_free_block_bytes{W}": "{{namespace}}/{{pod}} block",
                "worker_weight_largest_waiting_bytes{W}": "{{namespace}}/{{pod}} waits",
            },
            unit="bytes",
        ),
        Panel(
            "Bytes moved on the device",
            {"sum by (namespace, pod) (rate(worker_compaction_moved_bytes_total{W}[R]))": "{{namespace}}/{{pod}}"},
            unit="Bps",
            help="For single loads and in compactions.",
        ),
        Panel(
            "Compactions",
            {
                "sum(increase(worker_compactions_total{W}[R]))": "all",
                "sum(increase(worker_weight_fallback_compactions_total{W}[R]))": "a load needed it",
            },
        ),
    ),
    "Calls": (
        Panel("Calls by result", {"sum by (status) (rate(worker_requests_total{W}[R]))": "{{status}}"}, unit="reqps"),
        Panel(
            "Latency, loads included",
            {
                f"histogram_quantile({part}, sum by (le) (rate(worker_request_latency_seconds_bucket{{W}}[R])))": name
                for part, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
            },
            unit="s",
        ),
        Panel("Calls that wait", {"sum by (namespace, model) (worker_queue_depth{W})": "{{namespace}}/{{model}}"}),
        Panel(
            "Wait in the queue, 99 %",
            {'max by (namespace, model) (worker_queue_wait_seconds{W, quantile="0.99"})': "{{namespace}}/{{model}}"},
            unit="s",
        ),
        Panel(
            "Device time",
            {"sum by (namespace, pod) (rate(worker_compute_seconds_total{W}[R]))": "{{namespace}}/{{pod}}"},
            unit="percentunit",
        ),
        Panel(
            "Calls passed on to another worker",
            {"sum by (result) (rate(worker_forwarded_requests_total{W}[R]))": "{{result}}"},
            unit="reqps",
        ),
    ),
    "Plan": (
        Panel("Lines of the plan", {"sum by (line) (worker_plan_bytes{W})": "{{line}}"}, unit="bytes", stacked=True),
        Panel(
            "Budget, and what the driver counts",
            {
                "sum(worker_plan_budget_bytes{W})": "budget",
                "sum(worker_device_memory_process_used_bytes{W})": "driver",
            },
            unit="bytes",
        ),
        Panel(
            "What budgets lack",
            {"worker_plan_shortfall_bytes{W} > 0": "{{namespace}}/{{pod}}"},
            unit="bytes",
            help="A worker whose plan does not fit serves nothing.",
        ),
    ),
    "Host pool": (
        Panel(
            "Host pool",
            {"worker_host_weight_bytes{W}": "{{namespace}}/{{pod}} {{state}}"},
            unit="bytes",
            help="Workers that share a pool report the same bytes.",
        ),
        Panel(
            "Loads by source",
            {
                "sum(rate(worker_host_weight_hits_total{W}[R]))": "host copy",
                "sum(rate(worker_host_weight_fills_total{W}[R]))": "file, and a copy is kept",
                "sum(rate(worker_host_weight_fallbacks_total{W}[R]))": "file, no room for a copy",
            },
            unit="ops",
        ),
        Panel("Beyond the budget", {"worker_host_weight_excess_bytes{W}": "{{namespace}}/{{pod}}"}, unit="bytes"),
    ),
}

OPERATOR: Final[Mapping[str, Sequence[Panel]]] = {
    "Models and workers": (
        Panel(
            "Models that are not Ready",
            {"1 - max by (namespace, name) (ballast_operator_model_ready{N}) > 0": "{{namespace}}/{{name}}"},
        ),
        Panel(
            "Workers by state",
            {"sum by (state) (ballast_operator_workers{N})": "{{state}}"},
            stacked=True,
        ),
        Panel(
            "Workers without host copies",
            {
                "sum by (namespace, budget) (ballast_operator_workers_without_host_copies{N})": "{{namespace}}/{{budget}}"
            },
        ),
        Panel(
            "Models that a placement moved",
            {
                "sum by (namespace, budget) (increase(ballast_operator_models_moved_total{N}[R]))": (
                    "{{namespace}}/{{budget}}"
                )
            },
        ),
        Panel(
            "Placements",
            {"sum by (trigger) (increase(ballast_operator_repacks_total{N}[R]))": "{{trigger}}"},
        ),
        Panel(
            "Compactions",
            {"sum by (mode, result) (increase(ballast_operator_compactions_total{N}[R]))": "{{mode}} {{result}}"},
        ),
    ),
    "Operator": (
        Panel("Leader", {"ballast_operator_leader": "{{pod}}"}, kind="state-timeline"),
        Panel(
            "Queue",
            {"ballast_operator_queue_depth": "{{pod}}"},
            help="Keys that are due or overdue and not being worked on.",
        ),
        Panel(
            "Reconciliations",
            {
                "sum by (kind, result) (rate(ballast_operator_reconcile_seconds_count[R]))": "{{kind}} {{result}}",
                "sum by (kind) (rate(ballast_operator_reconcile_failures_total[R]))": "{{kind}} failed",
            },
            unit="ops",
        ),
        Panel(
            "Reconciliation, 99 %",
            {
                "histogram_quantile(0.99, sum by (le, kind) (rate(ballast_operator_reconcile_seconds_bucket[R])))": (
                    "{{kind}}"
                )
            },
            unit="s",
        ),
        Panel(
            "Calls to the API server by answer",
            {"sum by (code) (rate(ballast_operator_api_request_seconds_count[R]))": "{{code}}"},
            unit="reqps",
        ),
        Panel(
            "Wait for the operator's own rate limit, 99 %",
            {
                "histogram_quantile(0.99, sum by (le, priority) (rate(ballast_operator_api_write_wait_seconds_bucket[R])))": (
                    "{{priority}}"
                )
            },
            unit="s",
        ),
        Panel(
            "Time since the last event of any watch", {"ballast_operator_watch_event_age_seconds": "{{pod}}"}, unit="s"
        ),
        Panel(
            "Objects that a list showed and the watch had not told",
            {"sum by (resource) (increase(ballast_operator_cache_swept_total[R]))": "{{resource}}"},
        ),
        Panel(
            "Events",
            {
                "sum by (result) (rate(ballast_operator_events_total[R]))": "{{result}}",
                "sum(ballast_operator_events_waiting)": "waiting",
            },
        ),
    ),
}
