# SPDX-License-Identifier: Apache-2.0
"""The worker pods of a pool over time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from helpers.memory_cluster import NAMESPACE, Cluster, play

from ballast_operator.cluster.resources import PODS


class TurnedAway(Cluster):
    """Every pod is scheduled, waits a while, and is turned away by its node."""

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.came_at: dict[str, float] = {}

    def run_pod(self, pod: dict[str, Any]) -> None:
        name, uid, now = pod["metadata"]["name"], pod["metadata"]["uid"], self.loop.time()
        if uid not in self.came_at:
            self.came_at[uid] = now
            scheduled = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
            self.api.set_status(PODS, NAMESPACE, name, scheduled)
        elif now - self.came_at[uid] >= 1.0 and pod["status"]["phase"] == "Pending":
            why = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is left"}
            self.api.set_status(PODS, NAMESPACE, name, why)


def test_pods_that_a_node_turns_away_are_made_ever_more_seldom_although_each_is_pending_first():
    async def scene(cluster: TurnedAway) -> None:
        cluster.budget(1)
        leader = cluster.lead()
        await asyncio.sleep(600)
        times = list(cluster.came_at.values())
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert gaps == sorted(gaps)
        assert gaps[0] < 10
        assert 50 < gaps[-1] < 70
        leader.pool.failed_in_a_row = 100_000  # as after months
        await asyncio.sleep(140)
        assert len(cluster.came_at) - len(times) == 2

    play(scene, cluster=TurnedAway)


def test_a_pod_that_ends_after_all_were_ready_is_replaced_at_once():
    async def scene(cluster: Cluster) -> None:
        cluster.kubelets_look = False
        cluster.budget(1)
        leader = cluster.lead()
        for _ in range(8):
            await asyncio.sleep(20)
            [pod] = cluster.api.all(PODS)
            cluster.api.set_status(PODS, NAMESPACE, pod["metadata"]["name"], {"phase": "Failed", "conditions": []})
            await asyncio.sleep(1)
            assert leader.pool.failed_in_a_row == 1

    play(scene)


def test_a_worker_pod_that_loses_its_label_is_replaced_and_counts_again_when_it_has_it_back():
    async def scene(cluster: Cluster) -> None:
        cluster.budget(1)
        cluster.lead()
        await asyncio.sleep(20)
        [pod] = cluster.api.all(PODS)
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        cluster.api.label(PODS, NAMESPACE, name, {k: v for k, v in labels.items() if "managed-by" not in k})
        await asyncio.sleep(20)
        assert len(cluster.api.all(PODS)) == 2
        cluster.api.label(PODS, NAMESPACE, name, labels)
        await asyncio.sleep(20)
        assert len(cluster.api.all(PODS)) == 1

    play(scene)
