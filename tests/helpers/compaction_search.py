# SPDX-License-Identifier: Apache-2.0
"""Small arenas for tests of compaction: an exact search for the cheapest moves, and a referee that carries moves out."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from ballast_worker.device.compaction import Block, Move


def fewest_bytes(blocks: Sequence[Block], capacity: int, need: int) -> int | None:
    """The fewest bytes whose moves, one extent at a time to any free place, free a block (Dijkstra over placements)."""
    sizes = [block.nbytes for block in blocks]
    start = tuple(block.offset for block in blocks)
    best = {start: 0}
    heap = [(0, start)]
    while heap:
        cost, offsets = heapq.heappop(heap)
        if cost > best[offsets]:
            continue
        if largest_gap(list(zip(offsets, sizes, strict=True)), capacity) >= need:
            return cost
        for index, size in enumerate(sizes):
            if not blocks[index].movable:
                continue
            others = [(offsets[j], sizes[j]) for j in range(len(sizes)) if j != index]
            for target in range(capacity - size + 1):
                if any(target < low + other and low < target + size for low, other in others):
                    continue
                moved = (*offsets[:index], target, *offsets[index + 1 :])
                if cost + size < best.get(moved, 1 << 60):
                    best[moved] = cost + size
                    heapq.heappush(heap, (cost + size, moved))
    return None


def largest_gap(extents: Sequence[tuple[int, int]], capacity: int) -> int:
    """Largest free block beside (offset, size) extents."""
    cursor = largest = 0
    for offset, size in sorted(extents):
        largest, cursor = max(largest, offset - cursor), offset + size
    return max(largest, capacity - cursor)


def carry_out(blocks: Sequence[Block], capacity: int, moves: Sequence[Move]) -> int:
    """Move bytes, step by step and lowest byte first, and check that none is lost; returns the largest gap afterwards."""
    memory = bytearray(capacity)
    offsets = {block.key: block.offset for block in blocks}
    by_key = {block.key: block for block in blocks}
    marks = {
        block.key: bytes((index * 31 + i) % 251 + 1 for i in range(block.nbytes)) for index, block in enumerate(blocks)
    }
    for block in blocks:
        memory[block.offset : block.end] = marks[block.key]
    for move in moves:
        block = by_key[move.key]
        assert block.movable
        assert (offsets[move.key], block.nbytes) == (move.source, move.nbytes)
        for key, offset in offsets.items():
            apart = offset + by_key[key].nbytes <= move.target or move.target + move.nbytes <= offset
            assert apart or key == move.key, f"{move} lands on {key}"
        assert move.target < move.source or move.target >= move.source + move.nbytes
        for index in range(move.nbytes):
            memory[move.target + index] = memory[move.source + index]
        offsets[move.key] = move.target
    for key, offset in offsets.items():
        assert memory[offset : offset + by_key[key].nbytes] == marks[key]
    return largest_gap([(offset, by_key[key].nbytes) for key, offset in offsets.items()], capacity)


def random_arena(
    chance: random.Random, *, capacity: int, extents: int, busy: float = 0.0, pinned: float = 0.0
) -> list[Block]:
    """Extents of 1 to 4 bytes, scattered."""
    sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, extents))]
    while sum(sizes) >= capacity:
        sizes.pop()
    gaps = sorted(chance.randint(0, capacity - sum(sizes)) for _ in sizes)
    blocks, taken = [], 0
    for index, (size, gap) in enumerate(zip(sizes, gaps, strict=True)):
        blocks.append(Block(str(index), gap + taken, size, chance.random() >= busy, chance.random() < pinned))
        taken += size
    return blocks
