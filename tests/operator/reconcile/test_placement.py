# SPDX-License-Identifier: Apache-2.0
"""How often a pool is looked at while nothing happens."""

from __future__ import annotations

import asyncio
from typing import Any

from helpers.memory_cluster import NAMESPACE, Cluster, play

from ballast_operator.cluster.resources import PODS


class OneStuck(Cluster):
    """A node for one pod only."""

    def run_pod(self, pod: dict[str, Any]) -> None:
        if not self.workers:
            super().run_pod(pod)
        elif not pod.get("status"):
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
            status = {"phase": "Pending", "conditions": [condition]}
            self.api.set_status(PODS, NAMESPACE, pod["metadata"]["name"], status)


async def runs_while_nothing_happens(cluster: Cluster) -> int:
    assert cluster.leader is not None
    await asyncio.sleep(60)
    before = cluster.leader.runs["budget/ns/default"]
    await asyncio.sleep(300)
    return cluster.leader.runs["budget/ns/default"] - before


def test_a_pod_that_never_starts_makes_nobody_look_again_and_again():
    async def scene(cluster: Cluster) -> None:
        cluster.budget(2)
        cluster.model("ada")
        cluster.lead()
        assert await runs_while_nothing_happens(cluster) < 60

    play(scene, cluster=OneStuck)


def test_a_pool_without_workers_is_not_looked_at_for_a_model_that_nobody_can_read():
    async def scene(cluster: Cluster) -> None:
        cluster.budget(0)
        cluster.model("ada")
        cluster.lead()
        assert await runs_while_nothing_happens(cluster) < 60

    play(scene)
