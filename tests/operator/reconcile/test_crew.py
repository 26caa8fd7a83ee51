# SPDX-License-Identifier: Apache-2.0
"""The worker pods of a pool over time."""

from __future__ import annotations

import asyncio

from helpers.memory_cluster import NAMESPACE, Cluster, play

from ballast_operator.cluster.resources import PODS


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
