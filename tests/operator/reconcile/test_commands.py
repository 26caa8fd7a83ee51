# SPDX-License-Identifier: Apache-2.0
"""Commands by annotation: what is asked for is done once, or refused in words."""

from __future__ import annotations

import asyncio

import pytest
from helpers.memory_cluster import BUDGET, NAMESPACE, Cluster, play

from ballast_operator.api.common import MAX_WORD
from ballast_operator.cluster.resources import BUDGETS


@pytest.mark.parametrize(("command", "field"), [("repack", "lastRepack"), ("compact", "lastCompaction")])
def test_a_token_that_no_status_can_repeat_is_refused_with_an_event_and_a_shorter_one_is_done(command, field):
    async def scene(cluster: Cluster) -> None:
        def token() -> str | None:
            return cluster.api.find(BUDGETS, NAMESPACE, BUDGET)["status"].get(field, {}).get("token")

        cluster.budget(1)
        cluster.model("ada")
        cluster.lead()
        await asyncio.sleep(20)
        cluster.annotate(**{command: "x" * (MAX_WORD + 1)})
        await asyncio.sleep(30)
        assert token() is None
        [refusal] = [e for e in cluster.api.events if e["reason"] == "CommandRefused"]
        assert refusal["type"] == "Warning"
        assert (
            f"ballast.dev/{command} has a token of 254 characters, and the status repeats at most 253"
            in refusal["note"]
        )
        cluster.annotate(**{command: "y" * MAX_WORD})
        await asyncio.sleep(30)
        assert token() == "y" * MAX_WORD

    play(scene)
