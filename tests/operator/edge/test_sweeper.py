# SPDX-License-Identifier: Apache-2.0
"""Real lists correct what a watch did not tell, and find out a watch that tells nothing any more."""

from __future__ import annotations

import pytest
from helpers.memory_api import MemoryApi
from prometheus_client import CollectorRegistry

from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import MODELS
from ballast_operator.edge.health import Health
from ballast_operator.edge.sweeper import Sweeper
from ballast_operator.reconcile.world import make_caches


class Caches:
    """What a sweep changes of a world."""

    def __init__(self) -> None:
        self.caches = make_caches()

    def sweep(self, resource, listing, *, namespace) -> int:
        return len(self.caches[resource].sweep(listing, namespace=namespace))


class Rig:
    def __init__(self) -> None:
        self.api = MemoryApi(now=lambda: "2026-01-01T00:00:00Z")
        self.world = Caches()
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.sweeper = Sweeper(self.world, self.api, (), ClusterMetrics(self.registry), clock=lambda: self.now)
        self.health = Health(clock=lambda: 0.0)
        self.health.deaf = self.sweeper.deaf

    def change(self, name: str) -> None:
        self.api.put(MODELS, {"metadata": {"namespace": "ns", "name": name}, "spec": {"budgetRef": {"name": "b"}}})

    def cached(self) -> set[str]:
        return {obj["metadata"]["name"] for obj in self.world.caches[MODELS]}


@pytest.fixture
async def rig() -> Rig:
    found = Rig()
    found.change("kept")
    found.change("gone")
    await found.sweeper.fill()
    return found


async def test_what_vanished_without_a_word_is_gone_after_the_next_list(rig: Rig):
    rig.api.remove(MODELS, "ns", "gone")
    assert rig.cached() == {"kept", "gone"}
    await rig.sweeper.sweep(MODELS)
    assert rig.cached() == {"kept"}
    swept = rig.registry.get_sample_value("ballast_operator_cache_swept_total", {"resource": "inferencemodels"})
    assert swept == 1


async def test_a_list_that_fails_changes_nothing_and_is_no_fault(rig: Rig):
    rig.api.remove(MODELS, "ns", "gone")
    for _ in range(5):
        rig.api.refuse = 1
        await rig.sweeper.sweep(MODELS)
    assert rig.cached() == {"kept", "gone"}
    assert rig.health.faults() == []


async def test_a_watch_that_tells_nothing_of_what_three_lists_show_is_a_fault(rig: Rig):
    """nolar/kopf#787, nolar/kopf#957, nolar/kopf#996, nolar/kopf#1077, nolar/kopf#1276."""
    for _ in range(3):
        assert rig.health.faults() == []
        rig.change("kept")
        await rig.sweeper.sweep(MODELS)
    assert rig.health.faults() == [
        "the watch of inferencemodels told nothing of what 3 lists in a row showed to have changed"
    ]


async def test_a_watch_that_is_late_is_no_fault(rig: Rig):
    for _ in range(6):
        rig.change("kept")
        await rig.sweeper.sweep(MODELS)
        rig.sweeper.told(MODELS, "MODIFIED")
    assert rig.health.faults() == []


async def test_a_quiet_cluster_is_no_fault(rig: Rig):
    for _ in range(6):
        await rig.sweeper.sweep(MODELS)
    assert rig.health.faults() == []
