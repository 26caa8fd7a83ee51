# SPDX-License-Identifier: Apache-2.0
"""Ten thousand loads of a catalogue three times the device, with the arena and with XLA's allocator.

Residency is the worker's own, on real memory of the CPU; only the threads below it and the time are simulated. The control
arm sees the same requests and evicts by the same rule, but admits whatever has enough bytes free, whether or not they are
one block: what then cannot be placed is what contiguity admission is for.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import mmap
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

import jax

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import ALIGNMENT, Layout, TensorSpec, pack
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.memory import DeviceMemory, NotPlaceableError
from ballast_worker.device.reservation import Allocator
from ballast_worker.host.store import Transfer
from ballast_worker.residency import priority
from ballast_worker.residency.admission import Evict, Excluded, Resident, free_bytes
from ballast_worker.residency.demand import Readiness, Refusal
from ballast_worker.residency.manager import ResidencyManager
from ballast_worker.residency.protocol import ResidentModel
from benchmarks import report
from benchmarks.traces import Trace, catalogue, zipf

MODELS: Final = 60
TENSORS: Final = 8
DEVICE_SHARE: Final = 3
SCRATCH: Final = 256 << 10
SMALLEST, LARGEST = 16 << 10, 2 << 20
LINK_BYTES_PER_SECOND: Final = 55e9
RUN_SECONDS: Final = 0.005
SEED: Final = 1


class Device:
    """Memory for so many bytes of weights, by what places them.

    Attributes:
        memory: the worker's own.
    """

    memory: DeviceMemory

    def __init__(self, allocator: str, nbytes: int) -> None:
        self._backend: CpuBackend | None = None
        self._nbytes = nbytes
        if allocator == "arena":
            self._backend = CpuBackend()
            self.memory = ArenaMemory(self._backend, nbytes)
        else:
            self.memory = BfcMemory(SimulatedPool(nbytes + SCRATCH), scratch=SCRATCH)

    def held(self) -> int:
        """Bytes that weights take, and those of every JAX array that is alive and no view of the arena."""
        gc.collect()
        arrays: list[jax.Array] = jax.live_arrays()  # type: ignore[no-untyped-call]
        return self.memory.statistics().in_use + sum(array.nbytes for array in arrays if not self._is_view(array))

    def _is_view(self, array: jax.Array) -> bool:
        if self._backend is None:
            return False
        return 0 <= array.unsafe_buffer_pointer() - self._backend.address <= self._nbytes


def layouts(seed: int) -> list[Layout]:
    """Models of one large tensor and some smaller ones each."""
    chosen = random.Random(f"layouts {seed}")
    found = []
    for nbytes in catalogue(seed, MODELS, smallest=SMALLEST, largest=LARGEST):
        shares = [1.0, *(chosen.uniform(0.05, 0.5) for _ in range(TENSORS - 1))]
        found.append(
            pack([TensorSpec(f"t{i}", "uint8", (int(nbytes * share / sum(shares)),)) for i, share in enumerate(shares)])
        )
    return found


class Worker:
    """A worker's residency, its threads and clock moved by hand."""

    file_threads = 4

    def __init__(self, memory: DeviceMemory, models: Sequence[Layout]) -> None:
        self.memory = memory
        self.now = 0.0
        self.refused_models: list[str] = []
        self._posts: deque[Callable[[], None]] = deque()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.residency = ResidencyManager(
            memory=memory,
            store=cast("Any", self),
            demand=cast("Any", self),
            listener=cast("Any", self),
            post=self._posts.append,
            loader=cast("Any", self),
            scratch_limit=SCRATCH,
            weights_percent=100,
            after=lambda seconds, action: self._alarms.append((self.now + seconds, next(self._numbers), action)),
            clock=lambda: self.now,
        )
        for index, layout in enumerate(models):
            model = ResidentModel(
                str(index), cast("Bundle", _Packed(str(index), layout)), ResidencyWish.UNPINNED, SCRATCH
            )
            self.residency.register(model)
        self._settle()

    def request(self, seconds: float, model: str) -> bool:
        """One request for a model, from its arrival to the end of its execution; whether it was answered."""
        self.now = max(self.now, seconds)
        self._settle()
        readiness = self.residency.want(model)
        self._settle()
        while readiness is Readiness.LOADING and model not in self.refused_models:
            if self.residency.want(model) is Readiness.READY:
                break
            self._pass_time()
        if isinstance(readiness, Refusal) or model in self.refused_models:
            self.refused_models.clear()
            return False
        lease = self.residency.lease(model)
        self.now += RUN_SECONDS
        lease.release()
        self.residency.dispatched(model)
        self._settle()
        return True

    def forget_all(self) -> None:
        """Serve nothing any more."""
        for index in range(MODELS):
            self.residency.forget(str(index), lambda: None)
        self._settle()

    def _settle(self) -> None:
        while self._posts:
            self._posts.popleft()()

    def _pass_time(self) -> None:
        """Until the next alarm."""
        alarm = min(self._alarms)
        self._alarms.remove(alarm)
        self.now = max(self.now, alarm[0])
        alarm[2]()
        self._settle()

    # The loader, which is done at once.

    def fetch(self, bundle: Bundle, *, keep: bool, done: Callable[[Transfer | Exception, float], None]) -> None:
        """See `Loader.fetch`."""
        del keep
        self._posts.append(lambda: done(_Copy(bundle.layout.nbytes), 0.0))

    def fill(self, key: str, transfer: Transfer, done: Callable[[Exception | None, float], None]) -> None:
        """See `Loader.fill`."""

        def copy() -> None:
            self.memory.fill(key, transfer.chunks())
            seconds = cast("_Copy", transfer).nbytes / LINK_BYTES_PER_SECOND
            self.now += seconds
            done(None, seconds)

        self._posts.append(copy)

    def discard(self, transfer: Transfer) -> None:
        """See `Loader.discard`."""

    def has(self, bundle: Bundle) -> bool:
        """See `HostStore.has`."""
        del bundle
        return True

    # Demand and listener: nothing waits but the one request.

    def queued(self, model: str) -> int:
        """See `Demand.queued`."""
        del model
        return 0

    def executing(self, model: str) -> bool:
        """See `Demand.executing`."""
        del model
        return False

    def loaded(self, model: str) -> None:
        """See `Listener.loaded`."""

    def changed(self, model: str) -> None:
        """See `Listener.changed`."""

    def refused(self, model: str, refusal: Refusal) -> None:
        """See `Listener.refused`."""
        del refusal
        self.refused_models.append(model)


@dataclass(frozen=True)
class _Weights:
    digest: str


@dataclass(frozen=True)
class _Manifest:
    weights: _Weights


class _Packed:
    """As much of a bundle as residency looks at."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        self.manifest = _Manifest(_Weights(self.digest))
        self.weights_identity = self.digest
        self.layout = layout


class _Copy:
    """Implements `host.store.Transfer` with zeros."""

    kept = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def chunks(self) -> Iterator[Chunk]:
        """See `Transfer.chunks`."""
        yield Chunk(0, memoryview(bytes(self.nbytes)))

    def close(self) -> None:
        """See `Transfer.close`."""


def control(memory: DeviceMemory, models: Sequence[Layout], trace: Trace) -> tuple[int, int]:
    """Loads, and those that could not be placed, of a worker that admits by the count of free bytes."""
    loads, failed = 0, 0
    last: dict[int, float] = {}
    for seconds, model in trace:
        layout = models[model]
        if model not in last:
            shortfall = layout.nbytes - memory.statistics().free
            if shortfall > 0:
                residents = sorted(
                    (_resident(one, models[one].nbytes, seconds - used) for one, used in last.items()),
                    key=lambda resident: resident.key,
                )
                choice = free_bytes(residents, shortfall)
                for resident in choice.residents if isinstance(choice, Evict) else ():
                    memory.release(resident.extent)
                    del last[int(resident.model)]
            try:
                memory.place(str(model), layout)
            except NotPlaceableError:
                failed += 1
                continue
            memory.fill(str(model), _Copy(layout.nbytes).chunks())
            memory.activate(str(model))
            loads += 1
        last[model] = seconds
    for model in last:
        memory.release(str(model))
    return loads, failed


def _resident(model: int, nbytes: int, idle_seconds: float) -> Resident:
    key = priority.key(
        reload_seconds=nbytes / LINK_BYTES_PER_SECOND, nbytes=nbytes, uses=0.0, idle_seconds=idle_seconds
    )
    return Resident(str(model), str(model), nbytes, key, queued=False, excluded=Excluded.NOT)


def churn(allocator: str, loads: int) -> dict[str, int]:
    """Figures of one allocator."""
    models = layouts(SEED)
    total = sum(layout.nbytes for layout in models)
    nbytes = total // DEVICE_SHARE // ALIGNMENT * ALIGNMENT
    trace = zipf(SEED, models=MODELS, requests=20 * loads, exponent=0.6)
    device = Device(allocator, nbytes)
    worker = Worker(device.memory, models)
    empty, warm, refused, requests = device.held(), 0, 0, 0
    for seconds, model in trace:
        refused += not worker.request(seconds, str(model))
        requests += 1
        if requests % 100 == 0:
            begun = worker.residency.snapshot().loads
            if begun >= loads:
                break
            if begun >= loads // 10 and not warm:
                warm = _process_bytes()
    grown = _process_bytes() - warm
    snapshot = worker.residency.snapshot()
    worker.forget_all()
    left = device.held() - empty
    device.memory.close()
    other = Device(allocator, nbytes)
    control_loads, control_failed = control(other.memory, models, trace[:requests])
    other.memory.close()
    return {
        "loads": snapshot.loads,
        "failed_allocations": snapshot.admission_failures + refused,
        "growth_bytes": left,
        "control_failed_allocations": control_failed,
        "control_loads": control_loads,
        "requests": requests,
        "evictions": snapshot.evictions,
        "moved_bytes": snapshot.moved_bytes,
        "fallback_compactions": snapshot.fallback_compactions,
        "process_growth_bytes": grown,
        "catalogue_bytes": total,
        "device_bytes": nbytes,
    }


def _process_bytes() -> int:
    """The process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both allocators."""
    figures = {}
    for allocator in get_args(Allocator):
        report.progress(f"{options.loads} loads, {allocator}")
        figures[allocator] = churn(allocator, options.loads)
    return figures


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loads", type=report.above_zero(int), default=10_000, help="with each allocator (default 10000)"
    )


if __name__ == "__main__":
    report.main("churn", measure, description=__doc__, arguments=_arguments)
