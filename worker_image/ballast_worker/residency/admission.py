# SPDX-License-Identifier: Apache-2.0
"""Whether a load may happen, and what has to go first: pure decisions on what is on the device now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ballast_contract.quantities import ceil_api, human
from ballast_contract.reasons import Reason
from ballast_worker.device.memory import ExtentInfo, State
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.eviction import cheapest_set, cost


class Excluded(Enum):
    """Why a resident cannot go now."""

    NOT = ""
    PINNED = "pinned"
    LOADING = "loading"
    LEASED = "leased"
    """It was loaded for a request that has not run yet."""
    RECENT = "recent"
    """It is inside its minimum residence."""
    EXECUTING = "executing"
    """It can go when its executions have ended, if it gets no new ones."""


class Resident(NamedTuple):
    """One extent and whether it may go. A tuple, because one is made for every resident at every eviction.

    Attributes:
        extent: its key in the device memory.
        model: its name.
        nbytes: what it frees.
        key: its priority (see `priority.key`).
        queued: requests wait for it.
        excluded: why it cannot go.
    """

    extent: str
    model: str
    nbytes: int
    key: float
    queued: bool
    excluded: Excluded


@dataclass(frozen=True, slots=True)
class Evict:
    """These residents go now."""

    residents: tuple[Resident, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Room will be had later.

    Attributes:
        drain: residents that are executing and get no new executions until they have gone.
        quiet: nothing may execute for a moment, so that extents can slide.
    """

    drain: tuple[Resident, ...] = ()
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    """Enough bytes are free, nothing is in the way, and still there is no block."""


def infeasible(
    *, model: str, nbytes: int, scratch: int, capacity: int, pinned: int, scratch_limit: int, weights_percent: int
) -> Refusal | None:
    """Refuse what cannot fit even on a device that holds nothing but what is pinned.

    Args:
        model: its name.
        nbytes: of its weights.
        scratch: of the largest of its programs.
        capacity: bytes of device memory for weights.
        pinned: bytes of the other models that are always on the device.
        scratch_limit: bytes of the pool for scratch.
        weights_percent: of what a budget grows by, the part that is for weights.
    """
    if scratch > scratch_limit:
        return Refusal(
            Reason.SCRATCH_EXCEEDS_POOL,
            f"a program of '{model}' needs {scratch} bytes of scratch ({human(scratch)}), the pool has {scratch_limit} "
            f"({human(scratch_limit)}): raise device.scratch to {ceil_api(scratch)} or compile smaller batches",
        )
    if nbytes + pinned > capacity:
        short = nbytes + pinned - capacity
        return Refusal(
            Reason.INSUFFICIENT_DEVICE_MEMORY,
            f"the weights of '{model}' take {nbytes} bytes ({human(nbytes)}), and of {capacity} bytes for weights "
            f"({human(capacity)}) {pinned} are pinned ({human(pinned)}): {short} bytes short; raise device.budget by "
            f"{ceil_api(-(-100 * short // weights_percent))} or pin less",
        )
    return None


def not_contiguous(*, model: str, needed: int, free: int, largest_free: int) -> Refusal:
    """The refusal of a load for which enough bytes are free, but not in one block."""
    return Refusal(
        Reason.NOT_CONTIGUOUS,
        f"'{model}' needs one block of {needed} bytes ({human(needed)}): {free} are free, the largest block has "
        f"{largest_free} ({human(largest_free)}), and what lies between cannot move",
        retry_after_seconds=1.0,
    )


def free_bytes(residents: Sequence[Resident], shortfall: int) -> Evict | Wait:
    """Choose who goes so that `shortfall` more bytes are free.

    Idle residents go first, then those with queued requests, then those that are executing, after their end. A later
    kind frees only what the earlier ones cannot.

    Args:
        residents: in rising order of their keys.
        shortfall: bytes, above 0.
    """
    idle, queued, executing = _kinds(residents)
    if (chosen := cheapest_set(idle, shortfall) or _cover(shortfall, (idle, queued))) is not None:
        return Evict(tuple(chosen))
    if (chosen := _cover(shortfall, (idle, queued, executing))) is not None:
        return Wait(drain=tuple(r for r in chosen if r.excluded is Excluded.EXECUTING))
    return Wait()


def free_block(
    extents: Sequence[ExtentInfo], residents: Sequence[Resident], *, capacity: int, needed: int
) -> Evict | Wait | Stuck:
    """Choose what to do when enough bytes are free, but sliding idle extents does not make a block.

    What is being filled cannot move and takes its time; what is executing cannot move either, but not for long. So
    executions are waited for where that is enough, and more residents go only where a load splits the memory.

    Args:
        extents: all of them, in order of their offsets.
        residents: in rising order of their keys.
        capacity: bytes of device memory for weights.
        needed: bytes of the block.
    """
    executing = any(extent.state is State.EXECUTING for extent in extents)
    filling = any(extent.state is State.FILLING for extent in extents)
    if not executing and not filling:
        return Stuck()
    by_extent = {resident.extent: resident for resident in residents}
    between_fills = _spans(extents, capacity, lambda extent: extent.state is State.FILLING)
    if executing and any(span.free >= needed for span in between_fills):
        return Wait(quiet=True)
    busy = (State.FILLING, State.EXECUTING)
    between_busy = _spans(extents, capacity, lambda extent: extent.state in busy) if executing else between_fills
    if (chosen := _cheapest_span(between_busy, by_extent, needed)) is not None:
        return Evict(chosen)
    if executing and _cheapest_span(between_fills, by_extent, needed) is not None:
        return Wait(quiet=True)
    return Wait()


def cheapest_single(residents: Sequence[Resident]) -> Resident | None:
    """Who goes next where nothing can move and one block is wanted: the one whose reload costs least; those with queued
    requests only when nobody else is left; None when nobody may go now.

    Args:
        residents: in rising order of their keys.
    """
    idle, queued, _ = _kinds(residents)
    candidates = idle or queued
    top = candidates[-1].key if candidates else 0.0
    return min(candidates, key=lambda resident: cost(resident, top), default=None)


@dataclass(slots=True)
class _Span:
    """What lies between two extents that cannot move."""

    free: int
    extents: list[str]


def _spans(extents: Sequence[ExtentInfo], capacity: int, barrier: Callable[[ExtentInfo], bool]) -> list[_Span]:
    spans = [_Span(0, [])]
    end = 0
    for extent in extents:
        if not extent.nbytes:
            continue
        spans[-1].free += extent.offset - end
        end = extent.offset + extent.nbytes
        if barrier(extent):
            spans.append(_Span(0, []))
        else:
            spans[-1].extents.append(extent.key)
    spans[-1].free += capacity - end
    return spans


def _cheapest_span(spans: Iterable[_Span], by_extent: dict[str, Resident], needed: int) -> tuple[Resident, ...] | None:
    top = max((resident.key for resident in by_extent.values()), default=0.0)
    found: list[tuple[bool, float, tuple[Resident, ...]]] = []
    for span in spans:
        inside = sorted((by_extent[key] for key in span.extents if key in by_extent), key=lambda r: r.key)
        idle, queued, _ = _kinds(inside)
        if (chosen := _cover(needed - span.free, (idle, queued))) is not None:
            found.append((any(r.queued for r in chosen), sum(cost(r, top) for r in chosen), tuple(chosen)))
    return min(found, key=lambda option: option[:2])[2] if found else None


def _kinds(residents: Iterable[Resident]) -> tuple[list[Resident], list[Resident], list[Resident]]:
    idle: list[Resident] = []
    queued: list[Resident] = []
    executing: list[Resident] = []
    for resident in residents:
        if not resident.nbytes:
            continue
        if resident.excluded is Excluded.NOT:
            (queued if resident.queued else idle).append(resident)
        elif resident.excluded is Excluded.EXECUTING:
            executing.append(resident)
    return idle, queued, executing


def _cover(shortfall: int, kinds: Sequence[Sequence[Resident]]) -> list[Resident] | None:
    """The cheapest members of each kind, of the later kinds only as much as the earlier ones cannot free."""
    chosen: list[Resident] = []
    for index in range(len(kinds) - 1, -1, -1):
        earlier = sum(resident.nbytes for kind in kinds[:index] for resident in kind)
        part = cheapest_set(kinds[index], shortfall - earlier)
        if part is None:
            return None
        chosen += part
        shortfall -= sum(resident.nbytes for resident in part)
    return chosen
