# SPDX-License-Identifier: Apache-2.0
"""A residency manager on real CPU memory whose time, threads and queues are moved by the test."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers.plain_bundles import packed_bytes, random_bundle

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.residency.manager import ResidencyManager
from ballast_worker.residency.protocol import CompactionMode, ResidentModel, Tier

UNIT = 4096
"""Bytes; sizes in these tests are counted in it."""


class Copy:
    """A transfer of packed bytes, as the host store gives them."""

    def __init__(self, store: Store, bundle: Bundle, *, kept: bool) -> None:
        self.kept = kept
        self._store = store
        self._bundle = bundle
        self.open = True
        store.open += 1

    def chunks(self) -> Iterator[Chunk]:
        data = memoryview(packed_bytes(self._bundle))
        step = 3 * UNIT
        for index, offset in enumerate(range(0, len(data), step)):
            if index == self._store.fail_chunk:
                raise OSError("the source failed in the middle")
            yield Chunk(offset, data[offset : offset + step])

    def close(self) -> None:
        if self.open:
            self.open = False
            self._store.open -= 1


class Store:
    """A host store that keeps what it is asked to keep."""

    def __init__(self) -> None:
        self.copies: set[str] = set()
        self.kept: set[str] = set()
        self.open = 0
        self.fail_chunk = -1
        self.full = False

    def acquire(self, bundle: Bundle, *, keep: bool, progress=None) -> Copy:
        if not self.full:
            self.copies.add(bundle.manifest.weights.digest)
            if keep:
                self.kept.add(bundle.manifest.weights.digest)
        return Copy(self, bundle, kept=not self.full)

    def has(self, bundle: Bundle) -> bool:
        return bundle.manifest.weights.digest in self.copies

    def unkeep(self, bundle: Bundle) -> None:
        self.kept.discard(bundle.manifest.weights.digest)


class StepLoader:
    """A loader whose fetches and fills end when the test says so."""

    file_threads = 4

    def __init__(self, memory: DeviceMemory, store: Store, post: Callable[[Callable[[], None]], None]) -> None:
        self.memory = memory
        self.store = store
        self.post = post
        self.fetches: list[tuple[Bundle, bool, Callable]] = []
        self.fills: deque[tuple[str, Copy, Callable]] = deque()
        self.fetched = Counter()

    def fetch(self, bundle, *, keep, done) -> None:
        self.fetches.append((bundle, keep, done))
        self.fetched[bundle.digest] += 1

    def fill(self, key, transfer, done) -> None:
        self.fills.append((key, transfer, done))

    def discard(self, transfer) -> None:
        transfer.close()

    def unkeep(self, bundle) -> None:
        self.store.unkeep(bundle)

    def end_fetch(self, index: int = 0, *, error: Exception | None = None) -> None:
        bundle, keep, done = self.fetches.pop(index)
        result = error or self.store.acquire(bundle, keep=keep)
        self.post(lambda: done(result, 0.0))

    def end_fill(self, *, error: Exception | None = None, seconds: float = 0.0) -> None:
        key, transfer, done = self.fills.popleft()
        try:
            if error is None:
                self.memory.fill(key, transfer.chunks())
        except (OSError, DeviceError) as raised:
            error = raised
        transfer.close()
        self.post(lambda: done(error, seconds))


class Queues:
    """Demand and listener: the engine as residency sees it."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.loaded_calls: list[str] = []
        self.refused_calls: list[tuple[str, object]] = []

    def queued(self, model: str) -> int:
        return self.waiting[model]

    def executing(self, model: str) -> bool:
        return self.running[model] > 0

    def loaded(self, model: str) -> None:
        self.loaded_calls.append(model)

    def refused(self, model: str, refusal) -> None:
        self.refused_calls.append((model, refusal))

    def changed(self, model: str) -> None:
        pass


class Rig:
    """A worker's residency with room for `capacity` units; with `beside_scratch` units of scratch in the same pool, where
    that is given, else in an arena.
    """

    def __init__(
        self, folder: Path, capacity: int, *, scratch_limit: int = 1 << 20, beside_scratch: int | None = None
    ) -> None:
        self.folder = folder
        self.now = 1000.0
        self.posts: deque[Callable[[], None]] = deque()
        self.alarms: list[tuple[float, Callable[[], None]]] = []
        self.memory: DeviceMemory
        if beside_scratch is None:
            self.memory = ArenaMemory(CpuBackend(), capacity * UNIT, clock=lambda: self.now)
        else:
            self.pool = SimulatedPool((capacity + beside_scratch) * UNIT)
            self.memory = BfcMemory(self.pool, scratch=beside_scratch * UNIT)
        self.store = Store()
        self.queues = Queues()
        self.loader = StepLoader(self.memory, self.store, self.posts.append)
        self.manager = ResidencyManager(
            memory=self.memory,
            store=self.store,
            demand=self.queues,
            listener=self.queues,
            post=self.posts.append,
            loader=self.loader,
            scratch_limit=scratch_limit,
            weights_percent=100,
            after=lambda seconds, action: self.alarms.append((self.now + seconds, action)),
            clock=lambda: self.now,
            wall_clock=lambda: 1.7e9 + self.now,
        )
        self._bundles: dict[tuple[str, int, int, int], Bundle] = {}

    def bundle(self, name: str, units: int, *, seed: int = 0, pieces: int = 1) -> Bundle:
        key = (name, units, seed, pieces)
        if key not in self._bundles:
            self._bundles[key] = random_bundle(
                self.folder / "-".join(map(str, key)),
                units * UNIT,
                seed=seed + zlib.crc32(name.encode()),
                pieces=pieces,
                name=name,
            )
        return self._bundles[key]

    def register(
        self, name: str, units: int, wish: str = "unpinned", *, seed: int = 0, scratch: int = 0, pieces: int = 1
    ):
        bundle = self.bundle(name, units, seed=seed, pieces=pieces)
        spec = ResidentModel(name, bundle, ResidencyWish(wish), scratch)
        return self.manager.register(spec)

    def run(self) -> None:
        """Let the device thread do what has been posted."""
        while self.posts:
            self.posts.popleft()()

    def pass_time(self, seconds: float) -> None:
        """Move the clock, ringing the alarms on the way."""
        end = self.now + seconds
        while due := [alarm for alarm in self.alarms if alarm[0] <= end]:
            alarm = min(due, key=lambda one: one[0])
            self.alarms.remove(alarm)
            self.now = max(self.now, alarm[0])
            alarm[1]()
            self.run()
        self.now = end

    def settle(self, *, load_seconds: float = 0.0) -> None:
        """End every fetch and fill, each taking `load_seconds` on the clock together."""
        self.run()
        while self.loader.fetches or self.loader.fills:
            if self.loader.fetches:
                self.loader.end_fetch()
            else:
                self.now += load_seconds
                self.loader.end_fill(seconds=load_seconds)
            self.run()

    def load(self, *names: str, load_seconds: float = 0.01) -> None:
        """Bring models to the device, one after the other, as requests do."""
        for name in names:
            answer = self.manager.want(name)
            self.settle(load_seconds=load_seconds)
            assert self.on_device(name), answer

    def execute(self, name: str, *, seconds: float = 0.001) -> None:
        """One execution from begin to end."""
        lease = self.manager.lease(name)
        self.now += seconds
        lease.release()
        self.manager.dispatched(name)
        self.run()

    def model(self, name: str):
        return next(model for model in self.manager.snapshot().models if model.name == name)

    def on_device(self, *names: str) -> bool:
        return all(self.model(name).tier is Tier.DEVICE for name in names)

    def residents(self) -> set[str]:
        return {model.name for model in self.manager.snapshot().models if model.tier is Tier.DEVICE}

    def compact(self, mode: str, *reload: str) -> list:
        results: list = []
        self.manager.compact(CompactionMode(mode), reload, results.append)
        return results

    def free(self) -> int:
        """Units free on the device."""
        return self.memory.statistics().free // UNIT
