# SPDX-License-Identifier: Apache-2.0
"""What stands around the worker pods: the pool's Services and the PodDisruptionBudget. Pure."""

from __future__ import annotations

from typing import Any

from ballast_contract import names
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import DISRUPTION_BUDGETS, SERVICES, Resource
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.endpoints import service_ports


def children(budget: str, namespace: str, owner: list[dict[str, Any]]) -> list[tuple[Resource, Object]]:
    """The objects that a budget has whatever its models are; the Service at which the whole pool is called comes first."""
    selector = naming.worker_selector(budget)

    def body(name: str, component: str, spec: Object) -> Object:
        labels = naming.labels(component=component, budget=budget)
        metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owner}
        return {"metadata": metadata, "spec": spec}

    metrics = {"name": "metrics", "port": names.METRICS_PORT, "targetPort": names.METRICS_PORT, "protocol": "TCP"}
    headless = {
        "clusterIP": "None",
        "selector": selector,
        "publishNotReadyAddresses": True,
        "ports": [*service_ports(), metrics],
    }
    pool = {"type": "ClusterIP", "selector": selector, "ports": service_ports()}
    disruption = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return [
        (SERVICES, body(naming.pool_service(budget), "pool", pool)),
        (SERVICES, body(naming.headless_service(budget), "workers", headless)),
        (DISRUPTION_BUDGETS, body(budget, "workers", disruption)),
    ]
