# SPDX-License-Identifier: Apache-2.0
"""Which residents go: the set that frees enough bytes and loses the least reload time.

This is the covering knapsack problem. A few candidates are searched exactly, by branch and bound with the bound of the
fractional problem (Martello and Toth, Knapsack Problems, 1990, chapter 2). Many are taken in order of their value per
byte, then improved: one candidate instead of the last or of all, and nobody who is superfluous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

EXACT_LIMIT = 16
"""Candidates up to which the search is exact unless it runs out of steps."""

MAX_STEPS = 2048
"""Nodes that the exact search may visit: about a millisecond."""

SPREAD = 1000.0
"""Powers of two below the most valuable candidate at which a value counts as nothing."""


class Evictable(Protocol):
    """A resident that may go."""

    @property
    def nbytes(self) -> int:
        """What its eviction frees, above 0."""
        ...

    @property
    def key(self) -> float:
        """Its priority (see `priority.key`)."""
        ...


E = TypeVar("E", bound=Evictable)


def cheapest_set(candidates: Sequence[E], shortfall: int) -> list[E] | None:
    """The cheapest candidates that free `shortfall` bytes together, or None when all of them do not.

    Exact up to `EXACT_LIMIT` candidates, else linear in them at worst.

    Args:
        candidates: in rising order of their keys; equals in the order in which they should go.
        shortfall: bytes to free. 0 or less frees nothing.
    """
    if shortfall <= 0:
        return []
    if not candidates:
        return None
    # Costs are relative to the most valuable candidate, so that none overflows.
    top = candidates[-1].key
    freed, spent, last, count = 0, 0.0, 0.0, 0
    for candidate in candidates:
        freed += candidate.nbytes
        distance = candidate.key - top
        last = candidate.nbytes * 2.0**distance if distance > -SPREAD else 0.0  # `cost`, without a call
        spent += last
        count += 1
        if freed >= shortfall:
            break
    else:
        return None
    head_freed, head_cost = freed - candidate.nbytes, spent - last
    # No set is cheaper than the prefix with just the needed part of its last member.
    bound = head_cost + last * (shortfall - head_freed) / candidate.nbytes
    best, spent = _without_superfluous(candidates[:count], freed - shortfall, spent, top)
    if spent <= bound:
        return best
    better, spent = _one_instead(candidates, count - 1, shortfall, head_freed, head_cost, top, best, spent)
    if spent > bound and len(candidates) <= EXACT_LIMIT:
        better = _exact(candidates, shortfall, top, better, spent)
    if better is best:
        return best
    return _without_superfluous(better, sum(candidate.nbytes for candidate in better) - shortfall, spent, top)[0]


def cost(candidate: Evictable, top: float) -> float:
    """Reload seconds lost with a candidate, where a byte of one with the key `top` costs 1."""
    distance = candidate.key - top
    return candidate.nbytes * 2.0**distance if distance > -SPREAD else 0.0


def _without_superfluous(chosen: Sequence[E], surplus: int, spent: float, top: float) -> tuple[list[E], float]:
    """Drop members that the rest can do without, the most valuable first and among equals the last in order first."""
    droppable = [index for index in range(len(chosen) - 1, -1, -1) if chosen[index].nbytes <= surplus]
    if not droppable:
        return list(chosen), spent
    droppable.sort(key=lambda index: -cost(chosen[index], top))
    dropped: set[int] = set()
    for index in droppable:
        if chosen[index].nbytes <= surplus:
            dropped.add(index)
            surplus -= chosen[index].nbytes
            spent -= cost(chosen[index], top)
    return [candidate for index, candidate in enumerate(chosen) if index not in dropped], spent


def _one_instead(
    candidates: Sequence[E],
    head: int,
    shortfall: int,
    head_freed: int,
    head_cost: float,
    top: float,
    best: list[E],
    spent: float,
) -> tuple[list[E], float]:
    """Try one candidate for the whole shortfall, or beside the first `head` for what is still missing."""
    rest = shortfall - head_freed
    for index, candidate in enumerate(candidates):
        if candidate.nbytes < rest:
            continue
        distance = candidate.key - top
        per_byte = 2.0**distance if distance > -SPREAD else 0.0
        # Whoever comes later costs at least as much per byte and is no smaller than what it has to free.
        if per_byte * shortfall >= spent and head_cost + per_byte * rest >= spent:
            break
        whole = candidate.nbytes * per_byte
        if candidate.nbytes >= shortfall and whole < spent:
            best, spent = [candidate], whole
        elif index >= head and head_cost + whole < spent:
            best, spent = [*candidates[:head], candidate], head_cost + whole
    return best, spent


def _exact(candidates: Sequence[E], shortfall: int, top: float, best: list[E], spent: float) -> list[E]:
    """Depth first, taking before leaving; a node is left when even its fractional completion costs as much as the best."""
    count = len(candidates)
    sizes = [candidate.nbytes for candidate in candidates]
    costs = [cost(candidate, top) for candidate in candidates]
    taken: list[E] = []
    steps = 0

    def completion(index: int, missing: int) -> float:
        total = 0.0
        while index < count:
            if sizes[index] >= missing:
                return total + costs[index] * missing / sizes[index]
            total += costs[index]
            missing -= sizes[index]
            index += 1
        return math.inf

    def visit(index: int, missing: int, paid: float) -> None:
        nonlocal best, spent, steps
        if missing <= 0:
            if paid < spent:
                best, spent = list(taken), paid
            return
        steps += 1
        if steps > MAX_STEPS or paid + completion(index, missing) >= spent:
            return
        taken.append(candidates[index])
        visit(index + 1, missing - sizes[index], paid + costs[index])
        taken.pop()
        visit(index + 1, missing, paid)

    visit(0, shortfall, 0.0)
    return best
