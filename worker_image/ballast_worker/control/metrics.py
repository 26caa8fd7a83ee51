# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: made from snapshots when they are scraped; what is not known is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from ballast_worker.control import metrics_memory, metrics_serving
from ballast_worker.control.http import Request, Response
from ballast_worker.control.metrics_families import gauge
from ballast_worker.control.observed import Requests
from ballast_worker.control.report import Phase, WorkerView
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
        yield gauge(
            "worker_ready", "1 when the plan is accepted and calls are taken", view.condition.phase is Phase.READY
        )
        yield from metrics_serving.models(view)
        yield from metrics_serving.requests(snapshot.requests, snapshot.inflight)
        yield from metrics_serving.forwarded(snapshot.forwarded)
        yield from metrics_memory.plan(view)
        yield from metrics_memory.device(view, snapshot.pool)
        yield from metrics_memory.residency(view)
        yield from metrics_memory.host(view)
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
