# SPDX-License-Identifier: Apache-2.0
"""Planning of compaction: which extents to move, and where, so that free memory becomes one block. Pure.

Two ways make a block of n bytes out of free bytes that are scattered. Sliding: the extents of a run of neighbours move
down, and the gaps between them become one. Relocating: extents of the run go to free blocks elsewhere. A plan moves one
run of neighbours, relocates what it must and slides the rest of the run down; among the runs it takes the one with the
fewest bytes. Where busy extents cut the arena into parts so that no run suffices, some parts are slid together and one
part is emptied into them. Choosing what to relocate is bin packing and is done largest first, best fit (best-fit
decreasing, Johnson 1973). Where nothing is busy a plan is found whenever the free bytes suffice; where something is, an
arrangement that only an exact search finds can be missed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MAX_ATTEMPTS = 64
"""Runs, and parts, that are tried for relocation, cheapest first, before the cheapest slide is taken."""

MAX_RELOCATED_RUN = 64
"""Extents of a run that is tried for relocation. Longer runs only slide."""


@dataclass(frozen=True, slots=True)
class Block:
    """An extent as the planner sees it: bytes, and whether it is idle and so may be moved."""

    key: str
    offset: int
    nbytes: int
    movable: bool
    pinned: bool

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Move:
    """Copy an extent. Source and target overlap only when the target lies below."""

    key: str
    source: int
    target: int
    nbytes: int


Gap = tuple[int, int]
"""(low, high) of free bytes."""


def plan_room(blocks: Sequence[Block], capacity: int, need: int) -> tuple[Move, ...] | None:
    """The moves, to be carried out in order, after which a block of `need` bytes is free.

    Every move's target is free, or part of its own source, once the moves before it are done. Pinned extents move only
    when no plan without them is found.

    Args:
        blocks: every extent with bytes, by offset.
        capacity: of the arena, in bytes.
        need: bytes.

    Returns:
        The moves, none when such a block is free already; None when no plan was found.
    """
    everything = _Room(blocks, capacity)
    if everything.free < need:
        return None
    if any(high - low >= need for low, high in everything.gaps):
        return ()
    unpinned = _Room([replace(b, movable=False) if b.pinned else b for b in blocks], capacity)
    for room in (unpinned, everything):
        moves = room.empty_run(need) or room.empty_part(need)
        if moves is not None:
            return moves
    return None


def plan_slide(blocks: Sequence[Block]) -> tuple[Move, ...]:
    """The moves, in order, that slide every movable block down as far as it goes.

    Afterwards there is at most one free block below each immovable extent and one at the end.
    """
    moves, cursor = [], 0
    for block in blocks:
        if block.movable and block.offset > cursor:
            moves.append(Move(block.key, block.offset, cursor, block.nbytes))
            cursor += block.nbytes
        else:
            cursor = block.end
    return tuple(moves)


class _Room:
    """Blocks and the gaps between them. A run [first, stop) is a range of neighbouring movable blocks, by index."""

    def __init__(self, blocks: Sequence[Block], capacity: int) -> None:
        self.blocks = blocks
        self.sums = [0]
        for block in blocks:
            self.sums.append(self.sums[-1] + block.nbytes)
        self.free = capacity - self.sums[-1]
        self._lows = [0, *(block.end for block in blocks)]
        self._highs = [*(block.offset for block in blocks), capacity]
        self.gaps: list[Gap] = [gap for gap in zip(self._lows, self._highs, strict=True) if gap[0] < gap[1]]

    def nbytes(self, first: int, stop: int) -> int:
        """Bytes of a run: what moving it costs."""
        return self.sums[stop] - self.sums[first]

    def low(self, first: int) -> int:
        """Where the room of a run begins: the end of the block before it."""
        return self._lows[first]

    def high(self, stop: int) -> int:
        """Where the room of a run ends: the start of the block after it."""
        return self._highs[stop]

    def span(self, first: int, stop: int) -> int:
        """Bytes of the room, the run's own included."""
        return self._highs[stop] - self._lows[first]

    def parts(self) -> list[tuple[int, int]]:
        """The maximal runs between immovable blocks, empty ones too."""
        walls = [-1, *(index for index, block in enumerate(self.blocks) if not block.movable), len(self.blocks)]
        return [(left + 1, right) for left, right in pairwise(walls)]

    def empty_run(self, need: int) -> tuple[Move, ...] | None:
        """The cheapest plan that moves one run of neighbours, or None."""
        slide = self._cheapest_slide(need)
        limit = self.nbytes(*slide) if slide else self.sums[-1] + 1
        heap = self._narrowest_runs(need)
        heapq.heapify(heap)
        holes = _by_size(self.gaps)
        for _ in range(MAX_ATTEMPTS):
            if not heap or heap[0][0] >= limit:
                break
            _, first, stop, end = heapq.heappop(heap)
            members = self.blocks[first:stop]
            wanted = need - self.span(first, stop) + self.nbytes(first, stop)
            moves = _pack(members, holes, wanted, outside=(self.low(first), self.high(stop)))
            if moves is not None:
                return (*moves, *_slide(_remaining(members, moves), self.low(first)))
            if stop < end and stop - first < MAX_RELOCATED_RUN:
                heapq.heappush(heap, (self.nbytes(first, stop + 1), first, stop + 1, end))
        return _slide(self.blocks[slice(*slide)], self.low(slide[0])) if slide else None

    def empty_part(self, need: int) -> tuple[Move, ...] | None:
        """The cheapest plan that slides other parts together and empties one part into them, or None."""
        parts = self.parts()
        wanted = {part: need - self.span(*part) + self.nbytes(*part) for part in parts if self.span(*part) >= need}
        hole_of = {self.low(first) + self.nbytes(first, stop): (first, stop) for first, stop in parts}
        holes = _by_size([(low, self.high(stop)) for low, (_, stop) in hole_of.items() if low < self.high(stop)])
        plans = []
        for first, stop in sorted(wanted, key=wanted.__getitem__)[:MAX_ATTEMPTS]:
            members = self.blocks[first:stop]
            packed = _pack(members, holes, wanted[first, stop], outside=(self.low(first), self.high(stop)))
            if packed is None:
                continue
            used = {max(low for low in hole_of if low <= move.target): None for move in packed}
            slides = [_slide(self.blocks[slice(*hole_of[low])], self.low(hole_of[low][0])) for low in used]
            rest = _slide(_remaining(members, packed), self.low(first))
            plans.append((*(move for slide in slides for move in slide), *packed, *rest))
        return min(plans, key=lambda moves: sum(move.nbytes for move in moves), default=None)

    def _cheapest_slide(self, need: int) -> tuple[int, int] | None:
        """The run of fewest bytes whose own gaps sum to `need`: two pointers, since both grow with the run."""
        best: tuple[int, int] | None = None
        for start, end in self.parts():
            first = start
            for stop in range(start + 1, end + 1):
                while first < stop and self.span(first, stop) - self.nbytes(first, stop) >= need:
                    if best is None or self.nbytes(first, stop) < self.nbytes(*best):
                        best = (first, stop)
                    first += 1
        return best

    def _narrowest_runs(self, need: int) -> list[tuple[int, int, int, int]]:
        """For each first block the shortest run whose room holds `need`: (bytes, first, stop, end of its part)."""
        runs = []
        for start, end in self.parts():
            stop = start
            for first in range(start, end):
                stop = max(stop, first + 1)
                while stop < end and self.span(first, stop) < need:
                    stop += 1
                if self.span(first, stop) >= need and stop - first <= MAX_RELOCATED_RUN:
                    runs.append((self.nbytes(first, stop), first, stop, end))
        return runs


def _by_size(gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    """(size, low) of gaps, sorted."""
    return sorted((high - low, low) for low, high in gaps)


def _pack(
    members: Sequence[Block], holes: Sequence[tuple[int, int]], wanted: int, *, outside: Gap
) -> list[Move] | None:
    """Relocate members of at least `wanted` bytes into holes that are not in `outside`; None when that fails."""
    left = list(holes)
    moves: list[Move] = []
    for block in sorted(members, key=lambda member: (-member.nbytes, member.offset)):
        if wanted <= 0:
            break
        index = bisect_left(left, (block.nbytes, 0))
        while index < len(left) and outside[0] <= left[index][1] < outside[1]:
            index += 1
        if index == len(left):
            continue
        size, low = left.pop(index)
        moves.append(Move(block.key, block.offset, low, block.nbytes))
        wanted -= block.nbytes
        if size > block.nbytes:
            insort(left, (size - block.nbytes, low + block.nbytes))
    return moves if wanted <= 0 else None


def _remaining(members: Sequence[Block], moves: Sequence[Move]) -> list[Block]:
    gone = {move.key for move in moves}
    return [block for block in members if block.key not in gone]


def _slide(members: Sequence[Block], low: int) -> tuple[Move, ...]:
    """Slide blocks down to `low`, lowest first."""
    moves = []
    for block in members:
        if block.offset > low:
            moves.append(Move(block.key, block.offset, low, block.nbytes))
        low += block.nbytes
    return tuple(moves)
