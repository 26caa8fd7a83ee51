# SPDX-License-Identifier: Apache-2.0
"""Moves in a changing world: nothing is taken away before its place is filled, whoever dies or goes in the middle."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest
from helpers.fake_worker import MIB, FakeWorker
from helpers.operator_rig import BUDGETS, MODELS, PODS, Rig

from ballast_contract.v1 import control_pb2 as pb

pytestmark = pytest.mark.apiserver

NAMES = ("one", "two", "three", "four", "five", "six")


async def _ready(rig: Rig, *names: str) -> None:
    for name in names:
        await rig.until_condition(MODELS, name, "Ready", "True")


async def _holder(rig: Rig, model: str) -> str:
    """The pod that alone answers for a model."""

    async def one() -> str:
        [name] = [n for n, (ready, _, _) in (await rig.endpoints(model)).items() if ready]
        return name

    return str(await rig.until(one))


class Gap:
    """Watches that a model has somewhere to send calls at every moment."""

    def __init__(self, rig: Rig, *models: str) -> None:
        self._rig, self._models = rig, models
        self._done = asyncio.Event()
        self.without: list[tuple[str, dict[str, tuple[bool, bool, bool]]]] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await self._task

    async def _watch(self) -> None:
        while not self._done.is_set():
            for model in self._models:
                endpoints = await self._rig.endpoints(model)
                answering = [n for n, (_, serving, _) in endpoints.items() if serving and n in self._rig.workers]
                if not any(model in self._rig.workers[n].models for n in answering if n in self._rig.workers):
                    self.without.append((model, endpoints))


async def _assigned(rig: Rig, model: str) -> list[str]:
    return (await rig.get(MODELS, model))["status"]["assignment"]["workers"]


async def _begin_move(pool: Rig) -> tuple[str, FakeWorker]:
    """Three workers, and the worker of model `one` is ending; returns its name and the worker that loads the model."""
    pool.prepare = lambda worker: worker.slow.add("one")
    await pool.budget(replicas=3)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for worker in pool.workers.values():
        worker.slow.clear()
    await pool.model("one", residency="device")
    old = await _holder(pool, "one")
    for worker in pool.workers.values():
        worker.slow.add("one")
    await pool.delete(PODS, old)

    async def loading() -> FakeWorker:
        [target] = await _assigned(pool, "one")
        assert target != old
        assert "one" in pool.workers[target].models
        return pool.workers[target]

    return old, await pool.until(loading)


async def test_a_move_whose_target_dies_goes_elsewhere_and_the_old_worker_serves_all_along(pool: Rig):
    old, target = await _begin_move(pool)
    async with Gap(pool, "one") as gap:
        await pool.end_pod(target.name)

        async def elsewhere() -> FakeWorker:
            [name] = await _assigned(pool, "one")
            assert name not in (old, target.name)
            assert "one" in pool.workers[name].models
            return pool.workers[name]

        other = await pool.until(elsewhere)
        assert not pool.workers[old].released
        other.finish("one")
        assert await _holder(pool, "one") == other.name
    assert gap.without == []


async def test_a_model_that_is_deleted_in_the_middle_of_its_move_leaves_both_workers(pool: Rig):
    old, target = await _begin_move(pool)
    ending = pool.workers[old]
    await pool.delete(MODELS, "one")

    async def gone() -> bool:
        return "one" not in target.models and ending.released

    await pool.until(gone)


async def test_a_new_leader_goes_on_with_the_moves_of_one_that_was_killed(bare: Rig):
    first = bare.start_operator()
    bare.prepare = lambda worker: worker.slow.add("one")
    await bare.budget(replicas=2)
    await bare.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for worker in bare.workers.values():
        worker.slow.clear()
    for name in ("one", "two"):
        await bare.model(name, residency="device")
    await _ready(bare, "one", "two")
    old = await _holder(bare, "one")
    [target] = [worker for worker in bare.workers.values() if worker.name != old]
    target.slow.add("one")
    bare.prepare = lambda worker: worker.slow.add("one")
    await bare.delete(PODS, old)

    async def begun() -> bool:
        [chosen] = await _assigned(bare, "one")
        told = [worker.name for worker in bare.workers.values() if "one" in worker.models and worker.name != old]
        everybody = len(bare.workers) == 3 and all(worker.generation for worker in bare.workers.values())
        return everybody and told == [chosen]

    await bare.until(begun)
    chosen = await _assigned(bare, "one")
    async with Gap(bare, "one", "two") as gap:
        await asyncio.to_thread(first.stop)
        bare.start_operator()

        async def told_again() -> bool:
            return all(worker.epoch >= 2 for worker in bare.workers.values())

        await bare.until(told_again)
        assert not bare.workers[old].released
        assert await _assigned(bare, "one") == chosen
        bare.workers[chosen[0]].finish("one")
        assert [await _holder(bare, "one")] == chosen
    assert gap.without == []


async def test_a_pool_shrinks_grows_and_goes_to_nothing_and_every_worker_that_ends_was_released(pool: Rig):
    released: set[str] = set()
    await pool.budget(replicas=3)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for name in NAMES:
        await pool.model(name)
    await _ready(pool, *NAMES)

    async def count(wanted: int) -> None:
        known = dict(pool.workers)

        async def reached() -> bool:
            released.update(worker.name for worker in known.values() if worker.released)
            return len(await pool.pods()) == wanted

        await pool.until(reached, seconds=40)
        released.update(worker.name for worker in known.values() if worker.released)
        assert released >= known.keys() - pool.workers.keys()

    async with Gap(pool, *NAMES) as gap:
        await pool.budget(replicas=1)
        await count(1)
        await pool.budget(replicas=3)
        await count(3)
        await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
        await _ready(pool, *NAMES)
    assert gap.without == []
    await pool.budget(replicas=0)
    await count(0)
    for name in NAMES:
        await pool.until_condition(MODELS, name, "Ready", "False", "NotRequested")
    await pool.budget(replicas=1)
    await _ready(pool, *NAMES)


async def test_compactions_run_side_by_side_and_a_failure_is_one_workers_own(pool: Rig):
    await pool.budget(replicas=3)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    together = asyncio.Barrier(3)
    broken, *_ = pool.workers.values()
    for worker in pool.workers.values():

        async def meet(request, context, worker=worker, answer=worker.CompactMemory) -> pb.CompactMemoryResponse:
            await together.wait()  # none of them goes on before all have been asked
            if worker is broken:
                await context.abort(14, "an execution will not end")  # UNAVAILABLE
            return await answer(request, context)

        worker.CompactMemory = meet
        await worker.stop()
        await worker.start()
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.annotate(BUDGETS, "default", compact="x")

    async def done() -> dict:
        found = (await pool.get(BUDGETS, "default"))["status"].get("lastCompaction", {})
        return found if found.get("token") == "x" else {}

    found = await pool.until(done)
    assert (found["workers"], found["failedWorkers"]) == (2, 1)
    assert found["message"] == f"{broken.name}: an execution will not end"
    assert any(
        kind == "Warning" and reason == "Compacted" and broken.name in note
        for kind, reason, note in await pool.until(lambda: pool.events("default"))
    )


async def test_a_compaction_after_a_repack_waits_until_the_models_have_moved(pool: Rig):
    pool.prepare = lambda worker: worker.bundles.update({f"pvc://models/{name}": 90 * MIB for name in NAMES})
    await pool.budget(
        replicas=2, placement={"hysteresisPercent": 0, "compaction": {"mode": "preload", "everyRepacks": 1}}
    )
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for name in NAMES:
        await pool.model(name)
    await _ready(pool, *NAMES)
    [third] = await _join_slowly(pool)
    mine = {name for name in NAMES if third.name in await _assigned(pool, name)}
    assert mine
    assert third.calls("CompactMemory") == []
    for name in mine:
        third.finish(name)

    async def compacted() -> list:
        return third.calls("CompactMemory")

    [request] = await pool.until(compacted)
    assert set(request.reload_models) == mine


async def _join_slowly(pool: Rig) -> list[FakeWorker]:
    """One more worker, on which everything takes its time, with something assigned to it."""
    before = set(pool.workers)
    update = pool.prepare

    def prepare(worker: FakeWorker) -> None:
        update(worker)
        worker.slow.update(NAMES)

    pool.prepare = prepare
    await pool.budget(
        replicas=3, placement={"hysteresisPercent": 0, "compaction": {"mode": "preload", "everyRepacks": 1}}
    )

    async def told() -> list[FakeWorker]:
        return [worker for name, worker in pool.workers.items() if name not in before and worker.models]

    return await pool.until(told)
