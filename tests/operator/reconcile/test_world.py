# SPDX-License-Identifier: Apache-2.0
"""What runs beside the reconciliations."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from typing import Any

import pytest

from ballast_operator.reconcile.world import World


class NoEvents:
    async def close(self) -> None:
        return


@pytest.fixture
def world() -> World:
    missing: Any = None
    events: Any = NoEvents()
    return World(
        client=missing,
        fleet=missing,
        events=events,
        certificates=missing,
        options=missing,
        metrics=missing,
        enqueue=lambda *_: None,
        epoch=lambda: 1,
        clock=lambda: 0.0,
        now=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        rng=random.Random(0),
    )


async def test_every_error_of_background_work_is_logged_with_what_it_was(world: World, caplog):
    async def fail(text: str) -> None:
        raise ValueError(text)

    for name in ("one", "two", "three"):
        world.background(fail(f"trouble of {name}"), name=name)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [r.getMessage() for r in caplog.records] == [f"{n} failed unexpectedly" for n in ("one", "two", "three")]
    assert [str(r.exc_info[1]) for r in caplog.records] == [f"trouble of {n}" for n in ("one", "two", "three")]
    await world.close()


async def test_background_work_that_is_ended_is_no_error(world: World, caplog):
    world.background(asyncio.Event().wait(), name="waits")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await world.close()
    assert caplog.records == []
