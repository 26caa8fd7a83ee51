# SPDX-License-Identifier: Apache-2.0
"""The arena's bookkeeping under random use: its invariants hold, and moving by its plans keeps every byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ballast_worker.device import compaction
from ballast_worker.device.arena import Arena
from ballast_worker.device.memory import BusyError, DeviceMemoryError, NotPlaceableError, State

UNIT = 256
UNITS = 40


class ArenaMachine(RuleBasedStateMachine):
    """Extents are filled with their own number, so that bytes that get lost are seen. One byte stands for 256."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(UNITS * UNIT)
        self.memory = bytearray(UNITS)
        self.marks: dict[str, int] = {}
        self.held: dict[str, tuple[int, int]] = {}
        self.count = 0

    def write(self, key: str) -> None:
        info = self.info(key)
        self.memory[info.offset // UNIT : (info.offset + info.nbytes) // UNIT] = bytes(
            [self.marks[key]] * (info.nbytes // UNIT)
        )

    def info(self, key: str):
        return next(info for info in self.arena.extents() if info.key == key)

    def carry_out(self, moves) -> None:
        for move in moves:
            source, target, size = move.source // UNIT, move.target // UNIT, move.nbytes // UNIT
            self.memory[target : target + size] = self.memory[source : source + size]
            self.arena.relocate(move)

    @rule(target=keys, units=st.integers(0, 12), pinned=st.booleans(), again=st.booleans())
    def place(self, units: int, pinned: bool, again: bool) -> str:
        key = f"k{self.count % 6 if again else self.count}"
        self.count += 1
        fits = any(size >= units * UNIT for _, size in self.arena.free_blocks()) or not units
        if key in self.arena:
            with pytest.raises(DeviceMemoryError):
                self.arena.place(key, units * UNIT, pinned=pinned)
        elif fits:
            best = min((size for _, size in self.arena.free_blocks() if size >= units * UNIT), default=0)
            self.arena.place(key, units * UNIT, pinned=pinned)
            self.marks[key] = self.count % 255 + 1
            self.write(key)
            self.held[key] = (self.info(key).offset, 0)
            assert best >= self.info(key).nbytes
        else:
            before = self.arena.extents()
            with pytest.raises(NotPlaceableError):
                self.arena.place(key, units * UNIT, pinned=pinned)
            assert self.arena.extents() == before
        return key

    @rule(key=keys)
    def activate(self, key: str) -> None:
        if key in self.arena and self.info(key).state is State.FILLING:
            self.arena.activate(key)
            del self.held[key]
        else:
            with pytest.raises(DeviceMemoryError):
                self.arena.activate(key)

    @rule(key=keys)
    def lease(self, key: str) -> None:
        if key in self.arena and self.info(key).state is not State.FILLING:
            self.arena.lease(key)
            offset, leases = self.held.get(key, (self.info(key).offset, 0))
            self.held[key] = (offset, leases + 1)
        else:
            with pytest.raises(DeviceMemoryError):
                self.arena.lease(key)

    @rule(key=keys)
    def unlease(self, key: str) -> None:
        if key in self.arena and self.info(key).state is State.EXECUTING:
            self.arena.unlease(key)
            offset, leases = self.held.pop(key)
            if leases > 1:
                self.held[key] = (offset, leases - 1)
        else:
            with pytest.raises(DeviceMemoryError):
                self.arena.unlease(key)

    @rule(key=consumes(keys))
    def free(self, key: str) -> None:
        if key not in self.arena:
            with pytest.raises(DeviceMemoryError):
                self.arena.release(key)
            return
        state = self.info(key).state
        if state is State.FILLING:
            with pytest.raises(BusyError):
                self.arena.release(key)
            self.arena.abandon(key)
            del self.held[key]
        elif state is State.EXECUTING:
            with pytest.raises(BusyError):
                self.arena.release(key)
        else:
            nbytes = self.info(key).nbytes
            assert self.arena.release(key) == nbytes

    @rule(key=keys, pinned=st.booleans())
    def pin(self, key: str, pinned: bool) -> None:
        if key in self.arena:
            self.arena.pin(key, pinned=pinned)

    @rule()
    def slide(self) -> None:
        self.carry_out(compaction.plan_slide(self.arena.blocks()))
        walls = sum(not block.movable for block in self.arena.blocks())
        assert len(self.arena.free_blocks()) <= walls + 1

    @rule(units=st.integers(1, UNITS))
    def make_room(self, units: int) -> None:
        moves = compaction.plan_room(self.arena.blocks(), self.arena.capacity, units * UNIT)
        free = self.arena.statistics().free
        if moves is None:
            assert free < units * UNIT or any(not block.movable for block in self.arena.blocks())
        else:
            self.carry_out(moves)
            assert self.arena.statistics().largest_free >= units * UNIT

    @rule(key=keys, to=st.integers(0, UNITS))
    def relocate_anywhere(self, key: str, to: int) -> None:
        """A move that is not allowed changes nothing; one that is keeps the books right."""
        if key not in self.arena or not self.info(key).nbytes:
            return
        info, before = self.info(key), self.arena.extents()
        move = compaction.Move(key, info.offset, to * UNIT, info.nbytes)
        try:
            self.arena.relocate(move)
        except (BusyError, DeviceMemoryError):
            assert self.arena.extents() == before
        else:
            self.write(key)

    @invariant()
    def bytes_are_conserved_and_nothing_overlaps(self) -> None:
        spans = sorted(
            [(info.offset, info.nbytes) for info in self.arena.extents() if info.nbytes] + self.arena.free_blocks()
        )
        cursor = 0
        for offset, nbytes in spans:
            assert offset == cursor
            assert offset % UNIT == 0
            cursor += nbytes
        assert cursor == self.arena.capacity

    @invariant()
    def free_blocks_are_coalesced_and_counted(self) -> None:
        free, numbers = self.arena.free_blocks(), self.arena.statistics()
        assert all(low + size < high for (low, size), (high, _) in pairwise(free))
        assert numbers.free == sum(size for _, size in free)
        assert numbers.largest_free == max((size for _, size in free), default=0)
        assert numbers.pinned == sum(info.nbytes for info in self.arena.extents() if info.pinned)

    @invariant()
    def what_is_filled_or_leased_has_stayed(self) -> None:
        for key, (offset, _) in self.held.items():
            assert self.info(key).offset == offset

    @invariant()
    def every_byte_is_where_the_books_say(self) -> None:
        for info in self.arena.extents():
            content = self.memory[info.offset // UNIT : (info.offset + info.nbytes) // UNIT]
            assert set(content) <= {self.marks[info.key]}


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=60, stateful_step_count=40)
