# SPDX-License-Identifier: Apache-2.0
"""The engine on the real residency, arena and host pool: models that do not fit together are all answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.serving import Answer, Model

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildRequest
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.host.pool import HostPool
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.loader import ThreadedLoader
from ballast_worker.residency.manager import ResidencyManager
from ballast_worker.serving.call import Call
from ballast_worker.serving.engine import DeviceEngine

MIB = 1 << 20


def _product(parameters, x):
    return {"y": x @ parameters["w"]}


@pytest.fixture(scope="module")
def models(make_model) -> dict[str, Model]:
    """Three models of 1 MiB."""
    return {
        name: make_model(
            name,
            _product,
            {"w": np.random.default_rng(seed).normal(size=(512, 512)).astype(np.float32)},
            inputs=[("x", np.float32, ("batch", 512))],
            batch_dimension="batch",
            programs=[{"batch": 1}, {"batch": 8}],
        )
        for seed, name in enumerate("abc")
    }


class Worker:
    """Everything below the protocols, for real."""

    def __init__(self, tmp_path, *, arena: int) -> None:
        self.memory = ArenaMemory(CpuBackend(), arena)
        self.store = HostPool(directory=tmp_path / "pool", budget=16 * MIB, segment_bytes=4 * MIB, ring_bytes=4 * MIB)
        self.engine = DeviceEngine(device=jax.devices("cpu")[0], max_queue=1000)
        self.loader = ThreadedLoader(memory=self.memory, store=self.store, post=self.engine.post)
        self.residency = ResidencyManager(
            memory=self.memory,
            store=self.store,
            demand=self.engine,
            listener=self.engine,
            post=self.engine.post,
            loader=self.loader,
            scratch_limit=64 * MIB,
            weights_percent=100,
        )
        self.engine.start(self.residency)

    def add(self, name: str, model: Model) -> Refusal | None:
        results: list[Refusal | None] = []
        done = threading.Event()

        def receive(refusal: Refusal | None) -> None:
            results.append(refusal)
            done.set()

        self.engine.add(model.servable(name), receive)
        assert done.wait(30)
        return results[0]

    def submit(self, name: str, x: np.ndarray, seconds: float = 60.0) -> Answer:
        answer = Answer()
        self.engine.submit(Call(name, (x,), {"batch": len(x)}, time.monotonic() + seconds, answer))
        return answer

    def close(self) -> None:
        self.engine.stop()
        self.loader.close()
        self.memory.close()
        self.store.close()


@pytest.fixture
def make_worker(tmp_path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(**options) -> Worker:
        workers.append(Worker(tmp_path, **options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def rows(seed: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 512)).astype(np.float32)


def test_models_that_do_not_fit_together_are_called_in_turn_and_every_answer_is_right(make_worker, models):
    """Two models share room for one; calls of one model are collated, swaps stay far below the calls."""
    worker = make_worker(arena=3 * MIB // 2)
    for name in "ab":
        assert worker.add(name, models[name]) is None
    calls = [(name, seed, worker.submit(name, rows(seed))) for seed in range(100) for name in "ab"]
    for name, seed, answer in calls:
        (y,) = answer.outputs()
        np.testing.assert_allclose(y, models[name].expected(rows(seed))[0], rtol=1e-4, atol=1e-4)
    loads = worker.residency.snapshot().loads
    assert 2 <= loads <= 40
    assert worker.memory.statistics().in_use <= 3 * MIB // 2


def test_callers_at_once_on_three_models_with_room_for_two_are_all_answered(make_worker, models):
    worker = make_worker(arena=5 * MIB // 2)
    for name in "abc":
        worker.add(name, models[name])
    wrong: list[tuple[str, int]] = []

    def call(name: str, start: int) -> None:
        for seed in range(start, start + 15):
            x = rows(seed, 1 + seed % 4)
            (y,) = worker.submit(name, x).outputs()
            if not np.allclose(y, models[name].expected(x)[0], rtol=1e-4, atol=1e-4):
                wrong.append((name, seed))

    callers = [threading.Thread(target=call, args=(name, 100 * index)) for index, name in enumerate("abcabc")]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
        assert not caller.is_alive()
    assert wrong == []


def test_a_model_that_can_never_fit_is_refused_when_it_is_added(make_worker, models):
    worker = make_worker(arena=MIB // 2)
    refusal = worker.add("a", models["a"])
    assert refusal is not None
    assert refusal.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert worker.submit("a", rows(1)).refusal().reason is Reason.NOT_REQUESTED


def test_a_new_version_takes_over_without_a_failed_call(make_worker, make_model, models):
    worker = make_worker(arena=3 * MIB)
    worker.add("m", models["a"])
    old, new = models["a"].expected(rows(1))[0], models["b"].expected(rows(1))[0]
    np.testing.assert_allclose(worker.submit("m", rows(1)).outputs()[0], old, rtol=1e-4, atol=1e-4)
    worker.add("m", models["b"])
    seen = []
    while not seen or not np.allclose(seen[-1], new, rtol=1e-4, atol=1e-4):
        seen.append(worker.submit("m", rows(1)).outputs()[0])
        assert len(seen) < 10_000
    assert all(np.allclose(y, old, rtol=1e-4, atol=1e-4) for y in seen[:-1])


def test_what_the_builder_process_compiled_is_served(make_worker, models, tmp_path):
    bundle = models["c"].bundle
    builder = LocalBuilder(ExecutableStore(tmp_path / "executables"), parallelism=1)
    built = builder.build(
        BuildRequest(
            bundle=bundle.path,
            digest=bundle.digest,
            programs=tuple(tuple(sorted(p.items())) for p in bundle.manifest.canonical_programs()),
            backend="cpu",
            ordinal=0,
            memory_bytes=1 << 30,
            timeout_seconds=120.0,
        ),
        progress=lambda _: None,
    )
    assert built.failure is None
    worker = make_worker(arena=2 * MIB)
    assert worker.add("c", Model(bundle, built.programs, models["c"].function, models["c"].parameters)) is None
    x = rows(3, 5)
    np.testing.assert_allclose(
        worker.submit("c", x).outputs()[0], np.asarray(jnp.dot(x, models["c"].parameters["w"])), rtol=1e-4, atol=1e-4
    )
