# SPDX-License-Identifier: Apache-2.0
"""From file to executable arrays with nothing replaced: host pool, file threads, copy thread, arena, views."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.plain_bundles import packed_bytes, random_bundle

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.weights import WeightsFile
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.cpu import CpuBackend, CpuUpload
from ballast_worker.host.limits import Available
from ballast_worker.host.pool import HostPool
from ballast_worker.residency.demand import Readiness
from ballast_worker.residency.loader import ThreadedLoader
from ballast_worker.residency.manager import ResidencyManager
from ballast_worker.residency.protocol import CompactionMode, ResidentModel, Tier

MIB = 1 << 20


class Engine:
    """The device thread is the test's own; requests wait in `waiting`, and what is refused is an error unless it is expected."""

    def __init__(self, folder, *, device: int, host: int, allocator: str = "arena"):
        self.posts: queue.SimpleQueue = queue.SimpleQueue()
        self.waiting: Counter = Counter()
        self.told: list = []
        self.folder = folder
        self.refusals: list | None = None
        self.ahead = 0.0
        if allocator == "arena":
            self.memory = ArenaMemory(CpuBackend(), device)
        else:
            self.memory = BfcMemory(SimulatedPool(device + MIB), scratch=MIB)
        self.store = HostPool(
            directory=folder / "pool",
            budget=host,
            segment_bytes=4 * MIB,
            ring_bytes=MIB,
            limits=lambda _: Available(1 << 40, "nothing"),
        )
        self.loader = ThreadedLoader(memory=self.memory, store=self.store, post=self.posts.put)
        self.manager = ResidencyManager(
            memory=self.memory,
            store=self.store,
            demand=self,
            listener=self,
            post=self.posts.put,
            loader=self.loader,
            scratch_limit=MIB,
            weights_percent=100,
            clock=lambda: time.monotonic() + self.ahead,
        )
        self.bundles: dict = {}

    def queued(self, model):
        return self.waiting[model]

    def executing(self, model):
        return False

    def loaded(self, model):
        self.told.append(model)

    def refused(self, model, refusal):
        assert self.refusals is not None, refusal
        self.refusals.append(refusal)

    def changed(self, model):
        pass

    def register(self, name, nbytes, *, wish="unpinned"):
        bundle = random_bundle(self.folder / name, nbytes, seed=len(self.bundles), pieces=2, name=name)
        self.bundles[name] = bundle, packed_bytes(bundle)
        assert self.manager.register(ResidentModel(name, bundle, ResidencyWish(wish), 0)) is None

    def turn(self):
        self.posts.get(timeout=20)()

    def execute(self, name):
        """One request, from its arrival to its answer: the weights as the executable would see them."""
        self.waiting[name] += 1
        while self.manager.want(name) is not Readiness.READY:
            self.turn()
        lease = self.manager.lease(name)
        self.waiting[name] -= 1
        data = b"".join(np.asarray(array).tobytes() for array in lease.arrays)
        lease.release()
        self.manager.dispatched(name)
        assert data == self.bundles[name][1]

    def close(self):
        self.loader.close()
        self.store.close()
        self.memory.close()


@pytest.fixture
def engine(tmp_path):
    made = []

    def make(**options):
        made.append(Engine(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("host", [16 * MIB, 0], ids=["copies", "streams"])
def test_cold_models_asked_for_at_once_are_read_at_once_and_each_once(engine, monkeypatch, host):
    """Three cold models, room for two. Each read waits until all three have begun. ray-project/ray#65346."""
    worker = engine(device=2 * MIB, host=host)
    together, opened, real = threading.Barrier(3), Counter(), WeightsFile._read

    def slow(self, *where):
        opened[self.identity.inode] += 1
        if opened[self.identity.inode] == 1:
            together.wait(20)
        real(self, *where)

    monkeypatch.setattr(WeightsFile, "_read", slow)
    for name in "abc":
        worker.register(name, MIB)
        worker.waiting[name] = 1
        assert worker.manager.want(name) is Readiness.LOADING
    done = set()
    while len(done) < 3:
        for name in set("abc") - done:
            if worker.manager.want(name) is Readiness.READY:
                worker.waiting[name] = 0
                worker.execute(name)
                done.add(name)
        if len(done) < 3:
            worker.turn()
    assert sorted(worker.told) == ["a", "b", "c"]
    assert worker.store.statistics().misses == 3
    assert worker.manager.snapshot().evictions == 1


@pytest.mark.parametrize("host", [8 * MIB, 0], ids=["copies", "streams"])
def test_random_loads_never_fail_and_every_execution_sees_its_own_weights(engine, host):
    worker = engine(device=3 * MIB, host=host)
    source = random.Random(5)
    sizes = [256 << 10, 512 << 10, 768 << 10, 1280 << 10]
    worker.register("pinned", 512 << 10, wish="device")
    for index in range(12):
        worker.register(f"m{index}", sizes[index % 4], wish="system" if index == 3 and host else "unpinned")
    for step in range(150):
        worker.execute(source.choice([*(f"m{index}" for index in range(12)), "pinned"]))
        if step % 50 == 25:
            results: list = []
            worker.manager.compact(CompactionMode.MOVE, [], results.append)
            assert results[0].fragmentation_after == 0
    snapshot = worker.manager.snapshot()
    assert snapshot.admission_failures == snapshot.fallback_compactions == 0
    assert snapshot.evictions > 20
    statistics = worker.memory.statistics()
    assert statistics.in_use == sum(extent.nbytes for extent in worker.memory.extents())
    tiers = {model.name: model.tier for model in snapshot.models}
    assert tiers["pinned"] is Tier.DEVICE
    if host:
        assert tiers["m3"] is not Tier.NONE
        assert worker.store.statistics().cached <= 8 * MIB
    else:
        assert worker.store.statistics().cached == 0


def held(worker) -> tuple:
    """What a load may leave behind, once its stream has ended: bytes of the device and of the host pool, descriptors and
    threads of this process. There may be as many file threads as are allowed, and an alarm ends by itself.
    """
    for thread in threading.enumerate():
        if thread.name == "stream":
            thread.join(20)
    memory = worker.memory
    pool = memory._pool.statistics() if isinstance(memory, BfcMemory) else None
    descriptors = sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    threads = [
        t.name for t in threading.enumerate() if not (t.name.startswith("files") or isinstance(t, threading.Timer))
    ]
    return memory.statistics(), pool, worker.store.statistics().nbytes, descriptors, sorted(threads)


@pytest.mark.parametrize("allocator", ["arena", "bfc"])
@pytest.mark.parametrize("host", [16 * MIB, 0], ids=["copies", "streams"])
@pytest.mark.parametrize("fails", ["source", "copy"])
def test_two_hundred_loads_that_fail_half_way_leave_everything_as_the_first_ones_did(
    engine, monkeypatch, fails, host, allocator
):
    """Each failed or repeated load left memory behind (triton-inference-server/server#8969, #3320;
    triton-inference-server/onnxruntime_backend#268).
    """
    monkeypatch.setattr(CpuBackend, "piece_bytes", MIB)  # so that a load has several
    worker = engine(device=6 * MIB, host=host, allocator=allocator)
    worker.register("good", MIB)
    worker.register("bad", 3 * MIB)
    worker.execute("good")
    with monkeypatch.context() as fault:
        what, where = {"source": (WeightsFile, "_read"), "copy": (CpuUpload, "send")}[fails]
        if (fails, allocator) == ("copy", "bfc"):
            what, where = SimulatedPool, "put"
        real, calls = getattr(what, where), Counter()

        def every_second_time(*args, **kwargs):
            calls["all"] += 1
            if calls["all"] % 2 == 0:
                raise OSError("the disk is gone") if fails == "source" else DeviceError("the link is gone")
            return real(*args, **kwargs)

        fault.setattr(what, where, every_second_time)
        worker.refusals = []
        before = None
        for turn in range(200):
            worker.ahead += 3600
            assert worker.manager.want("bad") is Readiness.LOADING
            while len(worker.refusals) <= turn:
                worker.turn()
            if turn == 7:  # the copy in host memory has been made
                before = held(worker)
        assert held(worker) == before
    assert {"gone" in refusal.message for refusal in worker.refusals} == {True}
    worker.ahead += 3600
    worker.execute("bad")
    worker.execute("good")
