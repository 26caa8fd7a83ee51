# SPDX-License-Identifier: Apache-2.0
"""What the arena does beyond the common suite: its views, its size, and a device that fails under it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import jax
import jaxlib._jax as jaxlib_private
import numpy as np
import pytest
from helpers.device_models import Weights, check, load

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.backend import DeviceError, DeviceLostError
from ballast_worker.device.cpu import CpuBackend, CpuUpload
from ballast_worker.device.memory import DeviceMemoryError
from ballast_worker.device.views import UnsupportedJaxlibError

KIB = 1 << 10


def pointers(memory: ArenaMemory, key: str) -> list[int]:
    lease = memory.lease(key)
    found = [array.unsafe_buffer_pointer() for array in lease.arrays]
    lease.release()
    return found


def test_views_alias_the_block_and_follow_their_model_when_it_moves() -> None:
    backend = CpuBackend()
    memory = ArenaMemory(backend, 1 << 20)
    load(memory, "a", Weights.of_bytes(64 * KIB))
    load(memory, "b", Weights.of_bytes(64 * KIB, 1))
    assert pointers(memory, "b") == [backend.address + 64 * KIB]
    memory.release("a")
    assert memory.compact().nbytes == 64 * KIB
    assert pointers(memory, "b") == [backend.address]
    check(memory, "b", Weights.of_bytes(64 * KIB, 1))
    memory.close()


def test_views_are_made_once_per_place() -> None:
    memory = ArenaMemory(CpuBackend(), 1 << 20)
    load(memory, "a", Weights.of_bytes(64 * KIB))
    first, second = memory.lease("a"), memory.lease("a")
    assert first.arrays[0] is second.arrays[0]
    first.release()
    second.release()
    memory.close()


def test_a_model_that_comes_back_to_its_place_has_its_views_again_and_they_see_the_new_bytes() -> None:
    backend = CpuBackend()
    memory = ArenaMemory(backend, 1 << 20)
    first, second = Weights.of_bytes(64 * KIB), Weights.of_bytes(64 * KIB, 7)
    load(memory, "a", first)
    with_lease = memory.lease("a")
    before = with_lease.arrays[0]
    with_lease.release()
    memory.release("a")
    load(memory, "b", Weights.of_bytes(64 * KIB, 3))
    memory.release("b")
    memory.place("a", first.layout)
    memory.fill("a", second.chunks())
    memory.activate("a")
    again = memory.lease("a")
    assert again.arrays[0] is before
    seen = np.asarray(jax.lax.bitcast_convert_type(before, np.uint32))
    assert np.array_equal(seen, second.array(0).view(np.uint32))
    again.release()
    memory.close()


@pytest.mark.parametrize(("asked", "had"), [(0, 0), (255, 0), (1000, 768), (-1, 0)])
def test_the_arena_has_whole_multiples_of_256_bytes(asked: int, had: int) -> None:
    memory = ArenaMemory(CpuBackend(), asked)
    assert memory.statistics().capacity == had
    load(memory, "nothing", Weights([]))
    check(memory, "nothing", Weights([]))
    memory.close()


def test_a_model_that_fills_the_arena_to_the_last_byte_is_placed() -> None:
    memory = ArenaMemory(CpuBackend(), 64 * KIB + 100)
    weights = Weights.of_bytes(64 * KIB)
    load(memory, "a", weights)
    assert memory.statistics().free == 0
    assert memory.statistics().fragmentation == 0
    check(memory, "a", weights)
    memory.close()


def test_a_jaxlib_that_cannot_alias_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxlib_private, "dlpack_managed_tensor_to_buffer", lambda *_: None)
    with pytest.raises(UnsupportedJaxlibError):
        ArenaMemory(CpuBackend(), 1 << 20)


class FailingUpload(CpuUpload):
    def finish(self) -> None:
        raise DeviceError("the copy engine reports an error")


class FailingBackend(CpuBackend):
    """A device whose next copy or move fails, as hardware may."""

    failing = False

    def upload(self) -> CpuUpload:
        return FailingUpload(self._block) if self.failing else super().upload()

    def move(self, source: int, target: int, nbytes: int) -> None:
        if self.failing:
            raise DeviceError("the copy engine reports an error")
        super().move(source, target, nbytes)


def test_a_copy_that_fails_on_the_device_leaves_the_bytes_as_before_and_every_chunk_released() -> None:
    """vllm-project/vllm#34600."""
    backend = FailingBackend()
    memory = ArenaMemory(backend, 1 << 20)
    load(memory, "a", Weights.of_bytes(64 * KIB))
    before, weights, released = memory.statistics(), Weights.of_bytes(256 * KIB, 1), []

    def chunks() -> Iterator[Chunk]:
        for chunk in weights.chunks(64 * KIB):
            yield Chunk(chunk.offset, chunk.data, release=lambda offset=chunk.offset: released.append(offset))

    backend.failing = True
    memory.place("b", weights.layout)
    with pytest.raises(DeviceError, match="copy engine"):
        memory.fill("b", chunks())
    assert released == [0, 64 * KIB, 128 * KIB, 192 * KIB]
    with pytest.raises(DeviceMemoryError, match="not been filled"):
        memory.activate("b")
    memory.abandon("b")
    assert memory.statistics() == before
    memory.close()


def test_a_compaction_that_fails_half_way_declares_the_device_lost() -> None:
    backend = FailingBackend()
    memory = ArenaMemory(backend, 1 << 20)
    load(memory, "a", Weights.of_bytes(64 * KIB))
    load(memory, "b", Weights.of_bytes(64 * KIB))
    memory.release("a")
    backend.failing = True
    extents = memory.extents()
    with pytest.raises(DeviceLostError, match="half way"):
        memory.compact()
    assert memory.extents() == extents
    backend.failing = False
    with pytest.raises(DeviceLostError, match="half way"):
        memory.compact()
    with pytest.raises(DeviceLostError, match="half way"):
        memory.lease("b")
    with pytest.raises(DeviceLostError, match="half way"):
        memory.place("c", Weights.of_bytes(KIB).layout)


class LateUpload(CpuUpload):
    """A device that has four copies in flight, of which the host sees one arrive only when it waits."""

    def __init__(self, block: np.ndarray) -> None:
        super().__init__(block)
        self._flying: deque[tuple[int, memoryview]] = deque()
        self._seen = 0

    def send(self, offset: int, data: memoryview, *, locked: bool) -> int:
        while len(self._flying) >= 4:
            self.wait()
        self._flying.append((offset, data))
        return self._seen

    def wait(self) -> int:
        if self._flying:
            offset, data = self._flying.popleft()
            self._seen = super().send(offset, data, locked=True)
        return self._seen

    def finish(self) -> None:
        while self._flying:
            self.wait()


class LateBackend(CpuBackend):
    piece_bytes = 16 * KIB

    def upload(self) -> CpuUpload:
        return LateUpload(self._block)


def test_an_iterator_over_two_buffers_never_waits_for_one_in_vain() -> None:
    memory = ArenaMemory(LateBackend(), 1 << 20)
    weights = Weights.of_bytes(512 * KIB, 1)
    free = [bytearray(40 * KIB), bytearray(40 * KIB)]

    def chunks() -> Iterator[Chunk]:
        for chunk in weights.chunks(40 * KIB):
            buffer = free.pop()  # fails where a real one would wait for ever
            buffer[: chunk.data.nbytes] = chunk.data
            data = memoryview(buffer)[: chunk.data.nbytes]
            yield Chunk(chunk.offset, data, locked=True, release=lambda buffer=buffer: free.append(buffer))

    memory.place("a", weights.layout)
    memory.fill("a", chunks())
    memory.activate("a")
    assert len(free) == 2
    check(memory, "a", weights)
    memory.close()


def test_what_needs_no_release_is_in_flight_while_the_next_is_asked_for() -> None:
    memory = ArenaMemory(LateBackend(), 1 << 20)
    weights, seen = Weights.of_bytes(512 * KIB, 1), [0]
    ahead = []

    def chunks() -> Iterator[Chunk]:
        for chunk in weights.chunks(16 * KIB):
            ahead.append(chunk.offset - seen[-1])
            yield chunk

    memory.place("a", weights.layout)
    memory.fill("a", chunks(), progress=seen.append)
    assert max(ahead) == 4 * 16 * KIB
    assert seen == sorted(seen)
    assert seen[-1] == 512 * KIB
    memory.activate("a")
    check(memory, "a", weights)
    memory.close()
