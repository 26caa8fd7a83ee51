# SPDX-License-Identifier: Apache-2.0
"""Events in a storm: few at once, and what is too much is said once."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

from ballast_contract.reasons import Reason
from ballast_operator.reconcile.events import Events


class BusyApi:
    """Takes Events when the test lets it."""

    def __init__(self) -> None:
        self.at_once = self.most = self.posted = 0
        self.open = asyncio.Event()

    async def create(self, *_: Any, **__: Any) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.open.wait()
        self.at_once -= 1
        self.posted += 1


async def test_a_storm_of_events_goes_out_a_few_at_once_and_its_excess_is_said_once(caplog):
    api: Any = BusyApi()
    events = Events(api, instance="me", clock=lambda: 0.0, now=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    for number in range(1500):
        about = {
            "apiVersion": "ballast.dev/v1alpha1",
            "metadata": {"namespace": "ns", "name": f"m{number}", "uid": str(number)},
        }
        events.post(about, "InferenceModel", "Normal", Reason.READY, "Ready", "1 of 1 copies answer")
    api.open.set()
    await events.close()
    assert api.posted == 1000
    assert api.most <= 4
    assert [r.getMessage() for r in caplog.records] == [
        "1000 Events wait to be posted: those that come meanwhile are not"
    ]
