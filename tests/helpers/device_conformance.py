# SPDX-License-Identifier: Apache-2.0
"""What every DeviceMemory must do: one suite, run against each implementation by a subclass that provides `memory`; and
what those do besides that do not share the pool of executions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.device_models import PATIENCE, Weights, check, executing, load

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.layout import DTYPES, TensorSpec
from ballast_worker.device.memory import BusyError, DeviceMemory, DeviceMemoryError, NotPlaceableError, State

UNIT = 1 << 18
"""Bytes. The sizes of public bug reports, in MiB there, are taken in these."""

CAPACITY = 256 * UNIT


class DeviceMemoryConformance:
    """Subclasses define a fixture `memory`: an empty DeviceMemory of CAPACITY bytes."""

    def test_every_supported_dtype_is_seen_bit_for_bit(self, memory: DeviceMemory) -> None:
        specs = [TensorSpec(dtype, dtype, (3, 5)) for dtype in sorted(DTYPES)]
        specs += [TensorSpec("scalar", "float32", ()), TensorSpec("empty", "float32", (0, 7))]
        weights = Weights(specs)
        load(memory, "a", weights)
        check(memory, "a", weights)

    def test_an_extent_goes_from_filling_to_ready_to_executing_and_back(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(UNIT)
        memory.place("a", weights.layout)
        assert memory.extents()[0].state is State.FILLING
        memory.fill("a", weights.chunks())
        assert memory.extents()[0].state is State.FILLING
        memory.activate("a")
        assert memory.extents()[0].state is State.READY
        lease = memory.lease("a")
        assert memory.extents()[0].state is State.EXECUTING
        lease.release()
        assert memory.extents()[0].state is State.READY
        assert memory.release("a") == weights.layout.nbytes
        assert memory.extents() == ()

    def test_what_is_not_there_yet_cannot_be_leased(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(UNIT)
        with pytest.raises(DeviceMemoryError, match="no extent"):
            memory.lease("a")
        memory.place("a", weights.layout)
        with pytest.raises(DeviceMemoryError, match="being filled"):
            memory.lease("a")
        with pytest.raises(DeviceMemoryError, match="not been filled"):
            memory.activate("a")

    def test_a_key_has_one_extent(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(UNIT)
        load(memory, "a", weights)
        before = memory.statistics()
        with pytest.raises(DeviceMemoryError, match="extent already"):
            memory.place("a", weights.layout)
        assert memory.statistics() == before

    def test_leases_nest_and_the_last_one_ends_the_execution(self, memory: DeviceMemory) -> None:
        load(memory, "a", Weights.of_bytes(UNIT))
        first, second = memory.lease("a"), memory.lease("a")
        first.release()
        with pytest.raises(BusyError):
            memory.release("a")
        second.release()
        memory.release("a")

    def test_a_released_lease_gives_no_arrays_and_cannot_be_released_again(self, memory: DeviceMemory) -> None:
        load(memory, "a", Weights.of_bytes(UNIT))
        lease = memory.lease("a")
        lease.release()
        with pytest.raises(DeviceMemoryError, match="released"):
            _ = lease.arrays
        with pytest.raises(DeviceMemoryError, match="released"):
            lease.release()

    def test_weights_are_not_freed_while_an_execution_reads_them(self, memory: DeviceMemory) -> None:
        """vllm-project/vllm#45520."""
        weights = Weights.of_bytes(4 * UNIT)
        load(memory, "a", weights)
        lease = memory.lease("a")
        with executing(lease) as result:
            before = memory.statistics()
            with pytest.raises(BusyError, match="executing"):
                memory.release("a")
            assert memory.statistics() == before
        assert result.result(PATIENCE) == pytest.approx(float(weights.array(0).sum(dtype=np.float64)), rel=1e-5)
        lease.release()
        memory.release("a")

    def test_weights_that_are_being_filled_are_neither_freed_nor_moved(self, memory: DeviceMemory) -> None:
        load(memory, "low", Weights.of_bytes(8 * UNIT))
        weights = Weights.of_bytes(8 * UNIT, 1)
        memory.place("a", weights.layout)
        memory.release("low")
        place = memory.extents()[0].offset
        with pytest.raises(BusyError, match="filling"):
            memory.release("a")
        memory.compact()
        assert memory.extents()[0].offset == place
        memory.fill("a", weights.chunks())
        memory.activate("a")
        check(memory, "a", weights)

    def test_a_fill_under_way_cannot_be_abandoned_or_activated(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(UNIT)
        refused = []

        def chunks() -> Iterator[Chunk]:
            for action in (memory.abandon, memory.activate, lambda key: memory.fill(key, [])):
                with pytest.raises(DeviceMemoryError) as error:
                    action("a")
                refused.append(str(error.value))
            yield from weights.chunks()

        memory.place("a", weights.layout)
        memory.fill("a", chunks())
        assert len(refused) == 3
        memory.activate("a")
        check(memory, "a", weights)

    @pytest.mark.parametrize("failing", [0, 1, 3])
    def test_a_failed_fill_leaves_the_bytes_as_before(self, memory: DeviceMemory, failing: int) -> None:
        """vllm-project/vllm#34600."""
        load(memory, "a", Weights.of_bytes(UNIT))
        before, extents = memory.statistics(), memory.extents()
        weights = Weights.of_bytes(4 * UNIT, 1)
        released: list[int] = []

        def chunks() -> Iterator[Chunk]:
            for index, chunk in enumerate(weights.chunks(UNIT)):
                if index == failing:
                    raise OSError("the file ends here")
                yield Chunk(chunk.offset, chunk.data, release=lambda index=index: released.append(index))

        memory.place("b", weights.layout)
        with pytest.raises(OSError, match="ends here"):
            memory.fill("b", chunks())
        assert released == list(range(failing))
        memory.abandon("b")
        assert memory.statistics() == before
        assert memory.extents() == extents

    def test_chunks_that_miss_repeat_or_leave_the_layout_fail_the_fill(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(4096)
        whole = next(weights.chunks())
        half = Chunk(0, whole.data[:2048])
        for chunks in ([half], [half, half], [whole, half], [Chunk(2048, whole.data)], []):
            memory.place("a", weights.layout)
            with pytest.raises(DeviceMemoryError, match="packed bytes"):
                memory.fill("a", chunks)
            with pytest.raises(DeviceMemoryError, match="not been filled"):
                memory.activate("a")
            memory.abandon("a")

    def test_chunks_may_come_in_any_order_and_size_and_progress_only_grows(self, memory: DeviceMemory) -> None:
        weights = Weights([TensorSpec(str(i), "float32", (1000 + i, 97)) for i in range(40)])
        chunks = list(weights.chunks((3 << 20) + 512))
        seen: list[int] = []
        memory.place("a", weights.layout)
        memory.fill("a", reversed(chunks), progress=seen.append)
        memory.activate("a")
        assert seen == sorted(seen)
        assert seen[-1] == weights.layout.nbytes
        check(memory, "a", weights)

    def test_an_iterator_over_two_buffers_never_waits_for_one_in_vain(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(8 * UNIT)
        free = threading.Semaphore(2)
        buffers = [np.empty(UNIT, np.uint8) for _ in range(2)]

        def chunks() -> Iterator[Chunk]:
            for index, chunk in enumerate(weights.chunks(UNIT)):
                assert free.acquire(timeout=PATIENCE)
                buffers[index % 2][:] = np.frombuffer(chunk.data, np.uint8)
                yield Chunk(chunk.offset, memoryview(buffers[index % 2]), release=free.release)

        memory.place("a", weights.layout)
        memory.fill("a", chunks())
        memory.activate("a")
        check(memory, "a", weights)

    def test_two_hundred_loads_and_unloads_leave_the_memory_as_it_was(self, memory: DeviceMemory) -> None:
        """triton-inference-server/server#8969, triton-inference-server/server#3320,
        triton-inference-server/onnxruntime_backend#268.
        """
        weights = Weights.of_bytes(UNIT)
        load(memory, "kept", weights)
        before, extents = memory.statistics(), memory.extents()
        for _ in range(200):
            load(memory, "a", weights)
            check(memory, "a", weights)
            memory.release("a")
        assert memory.statistics() == before
        assert memory.extents() == extents

    def test_pinned_bytes_are_counted_while_pinned(self, memory: DeviceMemory) -> None:
        load(memory, "a", Weights.of_bytes(UNIT), pinned=True)
        assert memory.statistics().pinned == UNIT
        memory.pin("a", pinned=False)
        assert memory.statistics().pinned == 0
        memory.pin("a", pinned=True)
        memory.pin("a", pinned=True)
        assert memory.statistics().pinned == UNIT
        memory.release("a")
        assert memory.statistics().pinned == 0

    def test_a_model_without_weights_takes_no_room(self, memory: DeviceMemory) -> None:
        before = memory.statistics()
        for weights in (Weights([]), Weights([TensorSpec("empty", "float32", (0,))])):
            load(memory, "a", weights)
            assert memory.statistics() == before
            check(memory, "a", weights)
            memory.compact()
            assert memory.release("a") == 0

    def test_statistics_are_consistent_from_any_thread(self, memory: DeviceMemory) -> None:
        weights = [Weights.of_bytes((1 + i) * 4096) for i in range(8)]
        stop = threading.Event()
        wrong: list[str] = []

        def watch() -> None:
            while not stop.is_set():
                extents, numbers = memory.extents(), memory.statistics()
                ends = 0
                for info in extents:
                    if info.offset < ends:
                        wrong.append(f"{info} overlaps what ends at {ends}")
                    ends = info.offset + info.nbytes
                if not 0 <= numbers.largest_free <= numbers.free <= numbers.capacity:
                    wrong.append(str(numbers))

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            for turn in range(100):
                key = str(turn % 8)
                load(memory, key, weights[turn % 8])
                if turn >= 4:
                    memory.release(str((turn - 4) % 8))
                if turn % 7 == 0:
                    memory.compact()
            stop.set()
            watching.result(PATIENCE)
        assert wrong == []

    def test_memory_is_not_closed_under_a_lease(self, memory: DeviceMemory) -> None:
        load(memory, "a", Weights.of_bytes(UNIT))
        lease = memory.lease("a")
        with pytest.raises(DeviceMemoryError, match="leased"):
            memory.close()
        lease.release()


class MovingMemoryConformance(DeviceMemoryConformance):
    """Also for memory that has nothing to do with the pool of executions."""

    def test_compaction_leaves_executing_weights_where_they_are(self, memory: DeviceMemory) -> None:
        """vllm-project/vllm#45520."""
        weights = {key: Weights.of_bytes(size * UNIT, size) for key, size in {"a": 4, "b": 8, "c": 12}.items()}
        for key in "abc":
            load(memory, key, weights[key])
        memory.release("a")
        place = {info.key: info.offset for info in memory.extents()}
        lease = memory.lease("b")
        with executing(lease) as result:
            memory.compact()
            assert {info.key: info.offset for info in memory.extents()}["b"] == place["b"]
            assert memory.moves_for(memory.statistics().free) is None
            with pytest.raises(NotPlaceableError):
                memory.make_room(memory.statistics().free)
        assert result.result(PATIENCE) == pytest.approx(float(weights["b"].array(0).sum(dtype=np.float64)), rel=1e-5)
        lease.release()
        memory.compact()
        assert {info.key: info.offset for info in memory.extents()}["b"] == 0
        assert memory.statistics().fragmentation == 0
        for key in "bc":
            check(memory, key, weights[key])

    def test_fragmented_memory_takes_a_large_model_after_moves(self, memory: DeviceMemory) -> None:
        """jax-ml/jax#13428, jax-ml/jax#788, tensorflow/tensorflow#10152."""
        weights = {str(i): Weights.of_bytes(30 * UNIT, i) for i in range(8)}
        for key, content in weights.items():
            load(memory, key, content, pinned=key == "1")
        for key in ("0", "2", "4", "6"):
            memory.release(key)
        large = Weights.of_bytes(50 * UNIT, 9)
        before = memory.statistics()
        pinned_at = next(info.offset for info in memory.extents() if info.pinned)
        assert before.free >= 100 * UNIT
        assert before.fragmentation > 0.5
        with pytest.raises(NotPlaceableError) as refused:
            memory.place("large", large.layout)
        assert (refused.value.needed, refused.value.largest_free) == (50 * UNIT, before.largest_free)
        assert memory.statistics() == before
        planned = memory.moves_for(50 * UNIT)
        assert planned is not None
        assert planned.nbytes == 30 * UNIT
        done = memory.make_room(50 * UNIT)
        assert (done.count, done.nbytes) == (planned.count, planned.nbytes)
        assert next(info.offset for info in memory.extents() if info.pinned) == pinned_at
        load(memory, "large", large)
        check(memory, "large", large)
        memory.compact()
        assert memory.statistics().fragmentation == 0
        for key in ("1", "3", "5", "7"):
            check(memory, key, weights[key])

    def test_pinned_weights_move_only_when_nothing_else_helps(self, memory: DeviceMemory) -> None:
        sizes = {"u": 100, "p": 40, "v": 60}
        weights = {key: Weights.of_bytes(size * UNIT) for key, size in sizes.items()}
        load(memory, "x", Weights.of_bytes(20 * UNIT))
        load(memory, "p", weights["p"], pinned=True)
        load(memory, "y", Weights.of_bytes(20 * UNIT))
        load(memory, "u", weights["u"])
        memory.release("x")
        memory.release("y")
        assert memory.moves_for(90 * UNIT) is not None
        memory.make_room(90 * UNIT)
        moved = {info.key: info.offset for info in memory.extents()}
        assert moved["p"] == 20 * UNIT
        assert moved["u"] != 80 * UNIT
        memory.make_room(memory.statistics().free)
        assert memory.statistics().fragmentation == 0
        check(memory, "p", weights["p"])
        check(memory, "u", weights["u"])

    def test_free_bytes_are_always_placeable_when_nothing_executes(self, memory: DeviceMemory) -> None:
        for index in range(16):
            load(memory, str(index), Weights.of_bytes(16 * UNIT - 4096 * index), pinned=index % 3 == 0)
        for index in range(0, 16, 2):
            memory.release(str(index))
        free = memory.statistics().free
        memory.make_room(free)
        assert memory.statistics().largest_free == free

    def test_a_model_comes_back_to_the_place_it_had(self, memory: DeviceMemory) -> None:
        weights = Weights.of_bytes(UNIT)
        for key in "abc":
            load(memory, key, weights)
        place = {info.key: info.offset for info in memory.extents()}
        memory.release("a")
        memory.release("b")
        load(memory, "b", weights)
        assert {info.key: info.offset for info in memory.extents()}["b"] == place["b"]

    def test_loads_run_beside_executions_of_other_models(self, memory: DeviceMemory) -> None:
        resident, loaded = Weights.of_bytes(4 * UNIT), Weights.of_bytes(64 * UNIT, 1)
        load(memory, "a", resident)
        lease = memory.lease("a")
        memory.place("b", loaded.layout)
        with executing(lease) as result, ThreadPoolExecutor(1) as copying:
            copying.submit(memory.fill, "b", loaded.chunks(UNIT)).result(PATIENCE)
            memory.activate("b")
            check(memory, "b", loaded)
        assert result.result(PATIENCE) == pytest.approx(float(resident.array(0).sum(dtype=np.float64)), rel=1e-5)
        lease.release()
