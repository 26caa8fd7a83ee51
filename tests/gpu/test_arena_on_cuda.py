# SPDX-License-Identifier: Apache-2.0
"""The arena on an NVIDIA GPU: the conformance suite, copies and moves bit for bit, no growth, polite loads.

Figures are printed as one JSON line each (run with -s); nothing is asserted about time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.device_conformance import CAPACITY, MovingMemoryConformance
from helpers.device_models import PATIENCE, Weights, check, load

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.device import nvml
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.backend import DeviceError
from ballast_worker.device.cuda import BOUNCE_BYTES, DEPTH, PIECE_BYTES, CudaBackend
from ballast_worker.device.probe import DeviceFacts, driver_used

pytestmark = pytest.mark.gpu

MIB = 1 << 20
GIB = 1 << 30


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}))


class LockedWeights(Weights):
    """Weights in page-locked memory, as the host pool holds them."""

    def __init__(self, specs: list[TensorSpec], seed: int = 0) -> None:
        from cuda.bindings import driver  # noqa: PLC0415

        super().__init__(specs, seed)
        (status,) = driver.cuMemHostRegister(self.image.ctypes.data, self.image.nbytes, 0)
        assert status == driver.CUresult.CUDA_SUCCESS
        self._driver = driver

    def chunks(self, size: int | None = None) -> Iterator[Chunk]:
        for chunk in super().chunks(size):
            yield Chunk(chunk.offset, chunk.data, locked=True)

    def unlock(self) -> None:
        self._driver.cuMemHostUnregister(self.image.ctypes.data)


@pytest.fixture
def backend(gpu: DeviceFacts) -> Iterator[CudaBackend]:
    backend = CudaBackend(0)
    yield backend
    backend.close()


class TestArenaOnCuda(MovingMemoryConformance):
    @pytest.fixture
    def memory(self, gpu: DeviceFacts) -> Iterator[ArenaMemory]:
        memory = ArenaMemory(CudaBackend(0), CAPACITY)
        yield memory
        memory.close()


def test_the_device_describes_itself_without_a_context(gpu: DeviceFacts) -> None:
    assert gpu.kind == "cuda"
    assert gpu.name
    assert gpu.total_bytes
    assert gpu.free_bytes is None or 0 < gpu.free_bytes <= gpu.total_bytes
    report("facts", **{key: getattr(gpu, key) for key in ("name", "total_bytes", "free_bytes", "other_processes")})


@pytest.mark.parametrize("locked", [True, False])
def test_bytes_of_any_count_arrive_at_any_offset(backend: CudaBackend, locked: bool) -> None:
    backend.allocate(512 * MIB)
    specs = [TensorSpec("w", "uint8", (6 * PIECE_BYTES + 12345,))]
    weights = LockedWeights(specs) if locked else Weights(specs)
    for offset in (0, 256, 200 * MIB):
        upload = backend.upload()
        sent = 0
        for start in range(0, weights.layout.nbytes, PIECE_BYTES - 256):
            piece = weights.image.data[start : start + PIECE_BYTES - 256]
            seen = upload.send(offset + start, piece, locked=locked)
            sent += len(piece)
            assert sent - DEPTH * PIECE_BYTES <= seen < sent
        while seen < sent:
            before, seen = seen, upload.wait()
            assert seen > before
        assert upload.wait() == sent
        upload.finish()
        assert backend.read(offset, weights.layout.nbytes) == weights.image.tobytes()
    if isinstance(weights, LockedWeights):
        weights.unlock()


def test_locked_and_other_memory_may_alternate_in_one_upload(backend: CudaBackend) -> None:
    backend.allocate(512 * MIB)
    rng = np.random.default_rng(3)
    locked = LockedWeights([TensorSpec("w", "uint8", (PIECE_BYTES,))])
    expected = np.zeros(12 * PIECE_BYTES, np.uint8)
    upload = backend.upload()
    for turn in range(12):
        data = locked.image if turn % 3 == 0 else rng.integers(0, 256, PIECE_BYTES, np.uint8)
        expected[turn * PIECE_BYTES :][:PIECE_BYTES] = data
        upload.send(turn * PIECE_BYTES, memoryview(data), locked=turn % 3 == 0)
        if turn % 3:
            data[:] = 0  # may be done as soon as `send` has returned
    upload.finish()
    assert backend.read(0, expected.nbytes) == expected.tobytes()
    locked.unlock()


@pytest.mark.parametrize("step", [256, MIB, BOUNCE_BYTES - 256, BOUNCE_BYTES, BOUNCE_BYTES + 256, 90 * MIB, 120 * MIB])
def test_moves_keep_every_byte_whatever_the_overlap(backend: CudaBackend, step: int) -> None:
    backend.allocate(256 * MIB)
    weights = Weights([TensorSpec("w", "uint8", (100 * MIB + 768,))])
    upload = backend.upload()
    for start in range(0, weights.layout.nbytes, PIECE_BYTES):
        upload.send(step + start, weights.image.data[start : start + PIECE_BYTES], locked=False)
    upload.finish()
    backend.move(step, 0, weights.layout.nbytes)
    backend.finish_moves()
    assert backend.read(0, weights.layout.nbytes) == weights.image.tobytes()


def test_moves_upward_keep_every_byte(backend: CudaBackend) -> None:
    backend.allocate(64 * MIB)
    weights = Weights.of_bytes(16 * MIB)
    upload = backend.upload()
    upload.send(0, weights.image.data, locked=False)
    upload.finish()
    backend.move(0, 16 * MIB, 16 * MIB)
    backend.finish_moves()
    assert backend.read(16 * MIB, 16 * MIB) == weights.image.tobytes()


def test_buffers_are_released_only_after_the_device_has_read_them(gpu: DeviceFacts) -> None:
    memory = ArenaMemory(CudaBackend(0), GIB)
    ring = LockedWeights([TensorSpec("ring", "uint8", (2 * PIECE_BYTES,))])
    weights = Weights.of_bytes(512 * MIB, 3)
    free = threading.Semaphore(2)

    def chunks() -> Iterator[Chunk]:
        for index, chunk in enumerate(weights.chunks(PIECE_BYTES)):
            assert free.acquire(timeout=PATIENCE)
            start = index % 2 * PIECE_BYTES
            slot = ring.image[start : start + len(chunk.data)]
            slot[:] = np.frombuffer(chunk.data, np.uint8)
            yield Chunk(chunk.offset, slot.data, locked=True, release=free.release)

    memory.place("a", weights.layout)
    memory.fill("a", chunks())
    memory.activate("a")
    check(memory, "a", weights)
    ring.unlock()
    memory.close()


def test_an_arena_larger_than_the_card_is_refused_with_what_is_free(backend: CudaBackend, gpu: DeviceFacts) -> None:
    assert gpu.total_bytes
    with pytest.raises(DeviceError, match=r"bytes of device memory for the arena cannot be had.*are free, lower"):
        backend.allocate(2 * gpu.total_bytes)


def test_the_device_grows_by_nothing_in_random_loads_executions_and_compactions(gpu: DeviceFacts) -> None:
    memory = ArenaMemory(CudaBackend(0), 2 * GIB)
    random = np.random.default_rng(7)
    models = {
        str(index): LockedWeights([TensorSpec(f"t{t}", "float32", (256, 256)) for t in range(1 + int(tensors))], index)
        for index, tensors in enumerate(random.integers(1, 800, 24))
    }
    multiply = jax.jit(lambda a, b: jnp.sum(a @ b))
    resident: list[str] = []

    def turn() -> None:
        key = str(random.integers(24))
        if key in resident:
            resident.remove(key)
            memory.release(key)
            return
        while memory.moves_for(models[key].layout.nbytes) is None:
            memory.release(resident.pop(0))
        memory.make_room(models[key].layout.nbytes)
        load(memory, key, models[key])
        resident.append(key)
        lease = memory.lease(key)
        multiply(lease.arrays[0], lease.arrays[-1]).block_until_ready()
        lease.release()

    for _ in range(50):
        turn()
    before = nvml.usage(gpu.uuids)
    for _ in range(400):
        turn()
    after = nvml.usage(gpu.uuids)
    for key in resident:
        check(memory, key, models[key])
    if before is not None and after is not None and after.processes <= 1:
        assert after.used == before.used
        report("growth", bytes=after.used - before.used, process_bytes=driver_used(gpu))
    memory.close()
    for weights in models.values():
        weights.unlock()


def test_a_load_at_the_speed_of_the_link(gpu: DeviceFacts) -> None:
    backend = CudaBackend(0)
    memory = ArenaMemory(backend, 4 * GIB)
    weights = LockedWeights([TensorSpec(str(i), "uint8", (2 * GIB // 300,)) for i in range(300)])
    pageable = Weights([TensorSpec("w", "uint8", (GIB,))])
    nbytes = weights.layout.nbytes
    plain, loads = [], []
    for _ in range(3):
        began = time.perf_counter()
        status = backend._driver.cuMemcpyHtoD(backend.address, weights.image.ctypes.data, nbytes)
        plain.append(time.perf_counter() - began)
        assert status[0].value == 0
    for _ in range(3):
        began = time.perf_counter()
        load(memory, "a", weights)
        loads.append(time.perf_counter() - began)
        memory.release("a")
    load(memory, "a", weights)
    check(memory, "a", weights)
    began = time.perf_counter()
    load(memory, "b", pageable)
    staged = time.perf_counter() - began
    memory.release("b")
    small = LockedWeights([TensorSpec("s", "uint8", (MIB,))])
    began = time.perf_counter()
    for _ in range(100):
        load(memory, "s", small)
        memory.release("s")
    one_mib = (time.perf_counter() - began) / 100
    report(
        "load", gigabytes=nbytes / 1e9, link_gb_s=nbytes / min(plain) / 1e9, load_gb_s=nbytes / min(loads) / 1e9,
        share=min(plain) / min(loads), staged_gb_s=GIB / staged / 1e9, one_mib_us=one_mib * 1e6,
    )  # fmt: skip
    memory.close()
    weights.unlock()
    small.unlock()


def test_inputs_of_requests_pass_a_load(gpu: DeviceFacts) -> None:
    backend = CudaBackend(0)
    memory = ArenaMemory(backend, 3 * GIB)
    weights = LockedWeights([TensorSpec("w", "uint8", (2 * GIB,))])
    inputs = np.random.default_rng(1).standard_normal(150_000, np.float32)
    device = backend.device

    def upload() -> float:
        began = time.perf_counter()
        array = jax.device_put(inputs, device)
        array.block_until_ready()
        took = time.perf_counter() - began
        assert float(array[-1]) == float(inputs[-1])
        return took

    quiet = sorted(upload() for _ in range(200))
    memory.place("a", weights.layout)
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(memory.fill, "a", weights.chunks())
        beside = []
        while not filling.done():
            beside.append(upload())
            time.sleep(0.001)
        filling.result()
    seconds = time.perf_counter() - began
    assert len(beside) > 5, "a load on one stream lets one pass, at its end"
    memory.activate("a")
    check(memory, "a", weights)
    beside.sort()
    report(
        "polite", load_gb_s=weights.layout.nbytes / seconds / 1e9, uploads=len(beside),
        quiet_p50_us=quiet[100] * 1e6, quiet_p99_us=quiet[197] * 1e6,
        beside_p50_us=beside[len(beside) // 2] * 1e6, beside_p99_us=beside[len(beside) * 99 // 100] * 1e6,
    )  # fmt: skip
    memory.close()
    weights.unlock()


def test_compaction_makes_the_free_memory_one_block_and_keeps_every_byte(gpu: DeviceFacts) -> None:
    memory = ArenaMemory(CudaBackend(0), 20 * GIB)
    weights = LockedWeights([TensorSpec("w", "uint8", (GIB,))])
    for index in range(20):
        load(memory, str(index), weights)
    for index in range(0, 20, 2):
        memory.release(str(index))
    moves = memory.compact()
    assert (moves.count, moves.nbytes) == (10, 10 * GIB)
    assert memory.statistics().fragmentation == 0
    for index in range(1, 20, 6):
        check(memory, str(index), weights)
    memory.close()
    weights.unlock()
