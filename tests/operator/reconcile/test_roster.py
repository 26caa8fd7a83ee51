# SPDX-License-Identifier: Apache-2.0
"""The size from which on the models of a pool have no Service each."""

from __future__ import annotations

import asyncio

from helpers.memory_cluster import Cluster, play

from ballast_operator.cluster.resources import SERVICES


def services(cluster: Cluster) -> dict[str, str]:
    found = (s["metadata"] for s in cluster.api.all(SERVICES) if "ballast.dev/model" in s["metadata"]["labels"])
    return {metadata["name"]: metadata["uid"] for metadata in found}


def test_a_move_at_the_limit_keeps_every_service_although_a_model_has_two_holders_for_a_while():
    async def scene(cluster: Cluster) -> None:
        cluster.budget(3)
        for name in ("ada", "ben", "cleo"):
            cluster.model(name, "device")
        cluster.lead()
        await asyncio.sleep(60)
        before = services(cluster)
        assert len(before) == 3
        cluster.budget(2)
        await asyncio.sleep(60)
        assert services(cluster) == before

    play(scene, max_model_endpoints=3)


def test_services_that_went_come_back_only_well_below_the_limit():
    async def scene(cluster: Cluster) -> None:
        names = [f"m{number}" for number in range(11)]
        cluster.budget(1)
        for name in names:
            cluster.model(name)
        cluster.lead()
        await asyncio.sleep(60)
        assert services(cluster) == {}
        cluster.model(names[0], replicas=0)
        await asyncio.sleep(60)
        assert services(cluster) == {}
        for name in names[1:3]:
            cluster.model(name, replicas=0)
        await asyncio.sleep(60)
        assert services(cluster)

    play(scene, max_model_endpoints=10)
