# SPDX-License-Identifier: Apache-2.0
"""What the demo looks at: the objects and their statuses, the workers and their metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ballast_contract import quantities
from e2e.demo.kube import Kube, condition

NAMESPACE = "ballast-demo"
Say = Callable[[str], None]


def models(kube: Kube, *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The InferenceModels as they are now."""
    found: list[dict[str, Any]] = kube.get("inferencemodels.ballast.dev", "-n", namespace)["items"]
    return found


def budget(kube: Kube, *, namespace: str = NAMESPACE) -> dict[str, Any]:
    """The WeightBudget as it is now."""
    found: dict[str, Any] = kube.get("weightbudgets.ballast.dev", "default", "-n", namespace)
    return found


def wait_ready(kube: Kube, say: Say, *, namespace: str = NAMESPACE, seconds: float = 900) -> float:
    """Wait until every model is Ready, saying what each waits for; returns the seconds it took."""
    started = time.monotonic()
    shown: dict[str, str] = {}

    def ready() -> bool:
        everything = models(kube, namespace=namespace)
        states = {m["metadata"]["name"]: condition(m, "Ready") for m in everything}
        for name, now in states.items():
            reason = "Ready" if now.get("status") == "True" else now.get("reason", "")
            if reason and shown.get(name) != reason:
                shown[name] = reason
                say(f"{name}: {reason}" + (f": {now['message']}" if reason != "Ready" else ""))
        return bool(states) and all(now.get("status") == "True" for now in states.values())

    kube.wait_for("every InferenceModel is Ready", ready, seconds=seconds)
    return time.monotonic() - started


def table(kube: Kube, *, namespace: str = NAMESPACE, wide: bool = False) -> str:
    """What `kubectl get inferencemodels,weightbudgets` prints."""
    kinds = "inferencemodels.ballast.dev,weightbudgets.ballast.dev"
    return kube.kubectl("get", kinds, "-n", namespace, *(("-o", "wide") if wide else ())).rstrip()


def worker_pods(kube: Kube, *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The pods of the pool that are not ending."""
    pods = kube.get("pods", "-n", namespace, "-l", "ballast.dev/budget=default")["items"]
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


def metrics(kube: Kube, pod: str, *, namespace: str = NAMESPACE) -> dict[str, float]:
    """A worker's metrics without labels, by name, read through the API server's proxy."""
    text = kube.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8002/proxy/metrics")
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


def fragmentation(kube: Kube, *, namespace: str = NAMESPACE) -> dict[str, dict[str, float]]:
    """Free bytes, largest free block and fragmentation of every worker, from its own metrics."""
    found = {}
    for pod in worker_pods(kube, namespace=namespace):
        name = pod["metadata"]["name"]
        values = metrics(kube, name, namespace=namespace)
        found[name] = {
            "free": values["worker_device_memory_free_bytes"],
            "largest": values["worker_device_memory_largest_free_block_bytes"],
            "fragmentation": values["worker_device_memory_fragmentation"],
            "loads": values["worker_weight_loads_total"],
            "evictions": values["worker_weight_evicts_total"],
            "moved": values["worker_compaction_moved_bytes_total"],
        }
    return found


def size(quantity: object) -> int:
    """Bytes of a quantity in a status."""
    return quantities.parse_api(str(quantity))


def command(
    kube: Kube, verb: str, status_key: str, *, namespace: str = NAMESPACE, seconds: float = 600
) -> dict[str, Any]:
    """Ask for a repack or a compaction by annotation and wait until the status carries the same token."""
    token = f"demo-{time.time_ns()}"
    kube.kubectl(
        "annotate", "weightbudget.ballast.dev", "default", "-n", namespace, "--overwrite", f"ballast.dev/{verb}={token}"
    )

    def done() -> dict[str, Any] | None:
        status = budget(kube, namespace=namespace).get("status", {}).get(status_key, {})
        return status if status.get("token") == token else None

    found: dict[str, Any] = kube.wait_for(f"{verb} with token {token}", done, seconds=seconds)
    return found
