# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of the operator creates."""

from __future__ import annotations

from typing import Final

from ballast_operator.cluster.client import Object

_PINNED_EVERY: Final = 10


def budget(number: int, replicas: int, *, namespace: str) -> Object:
    """A WeightBudget with so many workers."""
    spec = {"workers": {"replicas": replicas, "backend": "cpu", "executableStore": {"emptyDir": {}}}}
    return {"metadata": {"name": f"pool-{number}", "namespace": namespace}, "spec": spec}


def model(number: int, pools: int, *, namespace: str) -> Object:
    """An InferenceModel of one of so many pools; every tenth is to stay on the device."""
    spec = {
        "budgetRef": {"name": f"pool-{number % pools}"},
        "source": {"uri": f"file:///models/{number:05}"},
        "residency": "unpinned" if number % _PINNED_EVERY else "device",
    }
    return {"metadata": {"name": f"model-{number:05}", "namespace": namespace}, "spec": spec}
