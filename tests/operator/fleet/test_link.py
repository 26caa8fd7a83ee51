# SPDX-License-Identifier: Apache-2.0
"""Connections to real gRPC servers that play workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from helpers.fake_worker import FakeWorker

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.authority import Identity, KeyPair
from ballast_operator.fleet.channel import Member
from ballast_operator.fleet.fleet import Fleet, Notice
from ballast_operator.fleet.link import Assignment, CallError
from ballast_operator.fleet.routes import Hop, RouteBook

IDENTITY = Identity(b"", KeyPair(b"", b""))
MEMBER = Member("ns", "default", "w", "uid", "10.0.0.1")


async def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline, "it did not come about within 10 s"
        await asyncio.sleep(0.01)


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    found = FakeWorker("w")
    await found.start()
    yield found
    await found.stop()


class Rig:
    def __init__(self, worker: FakeWorker) -> None:
        self.epoch = 1
        self.notices: list[Notice] = []
        self.seen: list[int] = []
        self.routes = RouteBook()
        self.fleet = Fleet(
            epoch=lambda: self.epoch,
            notify=self.notices.append,
            identity=lambda: IDENTITY,
            on_epoch=self._follow,
            dial=lambda *_: grpc.aio.insecure_channel(f"127.0.0.1:{worker.port}"),
            heartbeat_limit=2.0,
        )
        self.running = asyncio.create_task(self.fleet.run())
        self.link = self.fleet.join(MEMBER)

    def _follow(self, epoch: int) -> bool:
        self.seen.append(epoch)
        return epoch < self.epoch + 1_000_000

    def assignment(self, generation: int, *names: str, table: dict | None = None) -> Assignment:
        models = tuple(
            pb.AssignedModel(name=n, object=f"ns/{n}", uri=f"pvc://m/{n}", residency=pb.RESIDENCY_DEVICE) for n in names
        )
        return Assignment(generation, models, self.routes.update(table or {}, epoch=self.epoch))


@pytest.fixture
async def rig(worker: FakeWorker) -> AsyncIterator[Rig]:
    found = Rig(worker)
    yield found
    found.running.cancel()
    await asyncio.gather(found.running, return_exceptions=True)


async def test_an_assignment_is_sent_once_and_its_effect_is_reported(rig: Rig, worker: FakeWorker):
    rig.link.assign(rig.assignment(1, "a"))
    await until(lambda: rig.link.view.can_call("a"))
    rig.link.assign(rig.assignment(1, "a"))
    rig.link.assign(rig.assignment(2, "a", "b"))
    await until(lambda: rig.link.view.can_call("b"))
    assert [request.generation for request in worker.calls("ApplyAssignment")] == [1, 2]
    assert any("ns/b" in notice.urgent for notice in rig.notices)


async def test_routes_travel_as_deltas_and_whole_to_a_worker_that_lost_them(rig: Rig, worker: FakeWorker):
    one, two = Hop("w", "10.0.0.1", 8000, 8001), Hop("v", "10.0.0.2", 8000, 8001)
    rig.link.assign(rig.assignment(1, "a", table={"a": (one,)}))
    await until(lambda: worker.routes == {"a": ["w"]})
    rig.link.assign(rig.assignment(1, "a", table={"a": (one,), "b": (two,)}))
    await until(lambda: worker.routes == {"a": ["w"], "b": ["v"]})
    last = worker.calls("ApplyAssignment")[-1].routes
    assert last.base_version > 0
    assert [route.model for route in last.routes] == ["b"]
    worker.route_version = 0  # it forgot them: the delta does not fit, and its answer says so
    rig.link.assign(rig.assignment(1, "a", table={"b": (two,)}))
    await until(lambda: worker.routes == {"b": ["v"]} and worker.route_version)
    assert worker.calls("ApplyAssignment")[-1].routes.base_version == 0


async def test_the_assignment_is_asserted_again_at_every_connection(rig: Rig, worker: FakeWorker):
    rig.link.assign(rig.assignment(1, "a"))
    await until(lambda: worker.calls("ApplyAssignment"))
    await worker.stop()
    worker.restart()
    worker.models.clear()
    await worker.start()
    await until(lambda: rig.link.view.instance_id == worker.instance and rig.link.view.can_call("a"))
    assert any(notice.worker for notice in rig.notices)


async def test_a_worker_that_knows_a_higher_epoch_is_reported_and_obeyed_when_ours_is_raised(worker: FakeWorker):
    worker.epoch = 9
    rig = Rig(worker)
    try:
        rig.link.assign(rig.assignment(1, "a"))
        await until(lambda: 9 in rig.seen)
        assert worker.calls("ApplyAssignment") == []
        rig.epoch = 10
        await until(lambda: rig.link.view.can_call("a"))
        assert worker.epoch == 10
    finally:
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)


async def test_a_silent_worker_becomes_stale_and_is_told_of_once(rig: Rig, worker: FakeWorker):
    rig.link.assign(rig.assignment(1, "a"))
    await until(lambda: rig.link.view.can_call("a"))
    rig.notices.clear()
    worker.silent = True
    await until(lambda: rig.link.view.stale(rig.fleet.now()) and rig.notices)
    [notice] = rig.notices
    assert notice.urgent == {"ns/a"}
    assert notice.worker
    worker.silent = False
    await until(lambda: not rig.link.view.stale(rig.fleet.now()))
    await until(lambda: len(rig.notices) > 1)
    assert "ns/a" in rig.notices[1].urgent


async def test_a_refused_call_says_what_the_worker_said(rig: Rig, worker: FakeWorker):
    await until(lambda: rig.link.view.known)
    worker.missing.add("pvc://m/x")
    with pytest.raises(CallError, match="nothing is at pvc://m/x") as caught:
        await rig.link.inspect("pvc://m/x", "")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert caught.value.reason is Reason.SOURCE_NOT_FOUND


async def compacting(rig: Rig, worker: FakeWorker) -> asyncio.Task[pb.CompactMemoryResponse]:
    """A compaction that the worker has begun and does not end."""
    begun = asyncio.Event()

    async def compact(*_: object) -> pb.CompactMemoryResponse:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    await worker.stop()
    worker.CompactMemory = compact
    worker.restart()
    await worker.start()
    await until(lambda: rig.link.view.instance_id == worker.instance)
    calling = asyncio.create_task(rig.link.compact(pb.COMPACTION_MODE_MOVE, (), seconds=300.0))
    async with asyncio.timeout(10):
        await begun.wait()
    return calling


async def test_a_call_in_flight_fails_in_words_when_its_pod_is_let_go(rig: Rig, worker: FakeWorker):
    calling = await compacting(rig, worker)
    rig.fleet.leave("uid")
    with pytest.raises(CallError, match="its pod is gone, or has another address") as caught:
        await calling
    assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_a_call_that_begins_after_its_pod_was_let_go_fails_in_words(rig: Rig):
    await until(lambda: rig.link.view.known)
    await rig.link.close()
    with pytest.raises(CallError, match="its pod is gone, or has another address"):
        await rig.link.release()


async def test_a_caller_that_is_cancelled_stays_cancelled_while_its_link_closes(rig: Rig, worker: FakeWorker):
    calling = await compacting(rig, worker)
    rig.fleet.leave("uid")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_pod_that_is_gone_is_let_go(rig: Rig, worker: FakeWorker):
    await until(lambda: rig.link.view.known)
    rig.fleet.leave("uid")
    assert rig.fleet.link("uid") is None
    assert rig.fleet.view("uid") is None
    await until(lambda: not worker._listeners)


async def test_a_pod_with_another_address_is_dialled_anew(rig: Rig):
    moved = Member("ns", "default", "w", "uid", "10.0.0.9")
    assert rig.fleet.join(moved) is not rig.link
    assert rig.fleet.join(moved) is rig.fleet.join(moved)
