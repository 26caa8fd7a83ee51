# SPDX-License-Identifier: Apache-2.0
"""What reconciliations share: what runs beside them, and what is remembered of objects."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from typing import Any

import pytest

from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Listing
from ballast_operator.cluster.resources import PODS, SERVICES
from ballast_operator.reconcile.world import World, budget_key
from ballast_operator.reconcile.writing import delete


class NoEvents:
    async def close(self) -> None:
        return


class NoFleet:
    def link(self, _: str) -> None:
        return


@pytest.fixture
def world() -> World:
    missing: Any = None
    fleet: Any = NoFleet()
    events: Any = NoEvents()
    return World(
        client=missing,
        fleet=fleet,
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


def pod(version: int, uid: str = "u") -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "a", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": f"n{version}"}}


@pytest.mark.parametrize("told", ["deleted", "missed", "replaced", "replaced unseen"])
def test_a_pod_that_is_gone_is_not_remembered_however_that_is_learnt(world: World, told: str):
    world.observe(PODS, None, pod(1))
    world.read_pod(pod(1))
    match told:
        case "deleted":
            world.observe(PODS, "DELETED", pod(2))
        case "missed":
            world.sweep(PODS, Listing((), "2"), namespace=None)
        case "replaced":
            world.observe(PODS, None, pod(2, "other"))
        case "replaced unseen":
            world.sweep(PODS, Listing((pod(2, "other"),), "2"), namespace=None)
    assert world._pods == {}


def test_a_pod_that_changed_is_read_anew_and_else_only_once(world: World):
    world.observe(PODS, None, pod(1))
    first = world.read_pod(pod(1))
    assert world.read_pod(pod(1)) is first
    world.observe(PODS, None, pod(2))
    assert world.read_pod(pod(2)).node == "n2"


class Deleter:
    """An API server where another object has taken the name."""

    async def delete(self, *_: object, **__: object) -> None:
        raise errors.Conflict("another of this name", status=409)


async def test_an_object_whose_name_another_has_taken_is_gone(world: World):
    client: Any = Deleter()
    world.client = client
    service = {"metadata": {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "1"}}
    world.observe(SERVICES, None, service)
    assert await delete(world, SERVICES, service, by=budget_key("ns", "b")) == ""
    assert world.caches[SERVICES].get("ns", "a") is None
