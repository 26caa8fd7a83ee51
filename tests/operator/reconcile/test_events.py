# SPDX-License-Identifier: Apache-2.0
"""Events in a storm and while the API server is away: few at once, the important ones first, none lost without a word."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from typing import Any

import pytest
from helpers.virtual_time import VirtualLoop
from prometheus_client import CollectorRegistry

from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.reconcile.events import Events
from ballast_operator.reconcile.metrics import ReconcileMetrics


class BusyApi:
    """Takes Events when the test lets it."""

    def __init__(self) -> None:
        self.at_once = self.most = 0
        self.open = asyncio.Event()
        self.errors: list[errors.ApiError] = []
        self.notes: list[str] = []
        self.names: Counter[str] = Counter()

    async def create(self, _: Any, body: Any, **__: Any) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.open.wait()
        self.at_once -= 1
        self.names[body["metadata"]["name"]] += 1
        if self.errors:
            raise self.errors.pop(0)
        self.notes.append(body["note"])


class Scene:
    def __init__(self) -> None:
        self.api: Any = BusyApi()
        self.registry = CollectorRegistry()
        self.events = Events(
            self.api,
            instance="me",
            metrics=ReconcileMetrics(self.registry),
            clock=asyncio.get_running_loop().time,
            now=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        )

    def say(self, number: int, note: str, severity: Any = "Normal", *, stands: bool = True) -> None:
        metadata = {"namespace": "ns", "name": f"m{number}", "uid": str(number)}
        about = {"apiVersion": "ballast.dev/v1alpha1", "metadata": metadata}
        self.events.post(about, "InferenceModel", severity, Reason.READY, "Ready", note, stands=stands)

    def count(self, result: str) -> float:
        return self.registry.get_sample_value("ballast_operator_events_total", {"result": result}) or 0.0

    async def all_gone(self) -> None:
        while self.events.waiting() or self.api.at_once:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(1.0)


def on_virtual_time(scenario: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


def test_a_storm_goes_out_a_few_at_once_warnings_first_and_nothing_is_dropped():
    async def scenario() -> None:
        scene = Scene()
        for number in range(3000):
            scene.say(number, f"{number}")
        scene.say(3000, "wrong", "Warning")
        assert scene.registry.get_sample_value("ballast_operator_events_waiting") == 3001
        scene.api.open.set()
        await scene.all_gone()
        assert scene.api.notes == ["wrong", *map(str, range(3000))]
        assert scene.api.most <= 4
        assert scene.count("posted") == 3001

    on_virtual_time(scenario)


def test_of_how_something_stands_only_the_newest_that_waits_is_posted():
    async def scenario() -> None:
        scene = Scene()
        scene.say(1, "0 of 1 copies answer", "Warning")
        scene.say(1, "1 of 1 copies answer")
        scene.say(1, "0 of 1 copies answer", "Warning")
        scene.say(2, "created pod a", stands=False)
        scene.say(2, "created pod b", stands=False)
        scene.api.open.set()
        await scene.all_gone()
        assert scene.api.notes == ["0 of 1 copies answer", "created pod a", "created pod b"]
        assert scene.count("superseded") == 2

    on_virtual_time(scenario)


def test_while_the_api_server_is_away_events_wait_and_one_whose_answer_was_lost_is_not_posted_twice():
    async def scenario() -> None:
        scene = Scene()
        scene.api.errors = [errors.Unavailable("away"), errors.Unavailable("away"), errors.AlreadyExists("there")]
        scene.api.open.set()
        scene.say(1, "1 of 1 copies answer")
        await scene.all_gone()
        assert list(scene.api.names.values()) == [3]
        assert scene.count("posted") == 1

    on_virtual_time(scenario)


def test_what_waits_for_an_api_server_that_is_away_is_superseded_too():
    async def scenario() -> None:
        scene = Scene()
        scene.api.errors = [errors.Unavailable("away")]
        scene.say(1, "0 of 1 copies answer", "Warning")
        await asyncio.sleep(0)
        scene.say(1, "1 of 1 copies answer")
        await asyncio.sleep(0)
        scene.api.open.set()
        await scene.all_gone()
        assert scene.api.notes == ["1 of 1 copies answer"]

    on_virtual_time(scenario)


@pytest.mark.parametrize("error", [errors.Forbidden("the namespace ends"), errors.Invalid("no")])
def test_what_the_api_server_refuses_is_logged_and_counted(error: errors.ApiError, caplog):
    async def scenario() -> None:
        scene = Scene()
        scene.api.errors = [error]
        scene.api.open.set()
        scene.say(1, "1 of 1 copies answer")
        await scene.all_gone()
        assert scene.count("refused") == 1
        assert "1 of 1 copies answer" in caplog.text

    on_virtual_time(scenario)


def test_the_end_waits_a_little_for_events_and_says_how_many_were_left(caplog):
    async def scenario() -> None:
        scene = Scene()
        for number in range(10):
            scene.say(number, "1 of 1 copies answer")
        await scene.events.close()
        assert scene.count("left") == 10
        assert "10 Events were not posted before the end" in caplog.text

    on_virtual_time(scenario)


def test_at_the_end_what_waits_is_posted_without_rest():
    async def scenario() -> None:
        scene = Scene()
        for number in range(100):
            scene.say(number, f"{number}")
        scene.api.open.set()
        await scene.events.close()
        assert len(scene.api.notes) == 100
        assert scene.count("left") == 0

    on_virtual_time(scenario)
