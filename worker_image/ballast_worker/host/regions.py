# SPDX-License-Identifier: Apache-2.0
"""What is done to the regions of a pool: find room, drop what the dead left, trim. All of it under the table's lock.

Evicting is one change of the table: a region that is not in it has no pages. Nothing has to be unmapped or unlocked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Holding, Locks
from ballast_worker.host.pages import PAGE_BYTES, Run, free_runs, take
from ballast_worker.host.store import HostBytes
from ballast_worker.host.table import Entry, State, Table


@dataclass(frozen=True, slots=True)
class Room:
    """Pages for a region.

    Attributes:
        runs: the pages.
        table: without the regions that went for them; not written yet.
        evicted: those regions.
    """

    runs: tuple[Run, ...]
    table: Table
    evicted: tuple[Entry, ...]


def pages_per_segment(directory: PoolDirectory) -> int:
    """Pages in each segment of the pool."""
    return directory.table.segment_bytes // PAGE_BYTES


def find_room(
    directory: PoolDirectory, table: Table, pages: int, locks: Locks, *, evict: bool, most: int | None
) -> Room | None:
    """Find pages for a region; None when there are not enough.

    Args:
        directory: of the pool.
        table: as it is now.
        pages: how many.
        locks: hold the victims' locks until the table has been written.
        evict: regions that nobody transfers or keeps may go, the least recently loaded first.
        most: segments whose pages all regions together may take, though there be more; None is unlimited.
    """
    per_segment = pages_per_segment(directory)
    bound = None if most is None else most * per_segment
    missing = pages - _room(table, per_segment, bound)
    victims: list[Entry] = []
    if missing > 0 and evict:
        for entry in _evictable(directory, table, locks):
            victims.append(entry)
            missing -= sum(run.count for run in entry.runs)
            if missing <= 0:
                break
    if missing > 0:
        return None
    left = table.without({victim.slot for victim in victims})
    runs = take(_free(left, per_segment), pages)
    assert runs is not None, "the pages were counted"  # noqa: S101
    return Room(runs, left, tuple(victims))


def _room(table: Table, per_segment: int, bound: int | None) -> int:
    """Pages that may be taken; below zero when more are taken than may be."""
    taken = sum(run.count for entry in table.entries for run in entry.runs)
    free = len(table.segments) * per_segment - taken
    return free if bound is None else min(free, bound - taken)


def _evictable(directory: PoolDirectory, table: Table, locks: Locks) -> Iterator[Entry]:
    """Regions that nobody transfers or keeps, the least recently loaded first; `locks` holds those that were answered."""
    ready = [entry for entry in table.entries if entry.state is State.READY]
    loaded = directory.table.last_loads([entry.slot for entry in ready])
    for entry in sorted(ready, key=lambda entry: loaded[entry.slot]):
        if try_evict(entry, locks):
            yield entry


def try_evict(entry: Entry, locks: Locks) -> bool:
    """Take what an eviction needs, without waiting."""
    if not locks.try_exclusive(entry_byte(entry.slot)):
        return False
    if not locks.try_exclusive(keep_byte(entry.slot)):
        locks.unlock(entry_byte(entry.slot))
        return False
    return True


def drop_dead(directory: PoolDirectory) -> tuple[Table, tuple[Entry, ...]]:
    """Drop regions whose filler died and regions without their segments. Hold the table's lock.

    Returns:
        The table without them, and what was dropped.
    """
    table = directory.table.read()
    segments = frozenset(table.segments)
    with directory.locks() as locks:
        dead = tuple(
            entry
            for entry in table.entries
            if (entry.state is State.FILLING and locks.try_exclusive(entry_byte(entry.slot)))
            or not _lies_in(entry, segments)
        )
        if dead:
            table = directory.table.write(table.without({entry.slot for entry in dead}))
    return table, dead


def drop_missing_segments(directory: PoolDirectory) -> tuple[Entry, ...]:
    """Take segments out of the table whose files cannot be used, with the regions in them. Hold the table's lock.

    Returns:
        Those regions.
    """
    table = directory.table.read()
    usable = tuple(number for number in table.segments if directory.has_segment(number))
    if usable == table.segments:
        return ()
    lost = tuple(entry for entry in table.entries if not _lies_in(entry, frozenset(usable)))
    directory.table.write(replace(table.without({entry.slot for entry in lost}), segments=usable))
    return lost


def _lies_in(entry: Entry, segments: frozenset[int]) -> bool:
    return all(run.segment in segments for run in entry.runs)


def remove_strays(directory: PoolDirectory) -> int:
    """Remove segment files that are not in the table: what a process left that died while it allocated.

    Returns:
        How many there were.
    """
    with directory.allocating(wait=False) as mine:
        if not mine:
            return 0
        with directory.locked():
            strays = directory.segment_files() - set(directory.table.read().segments)
        for number in strays:
            directory.remove_segment(number)
    return len(strays)


def trim(directory: PoolDirectory, *, segments: int) -> None:
    """Give segments beyond so many back, those first that hold the least. Hold the table's lock.

    A segment with a region that somebody transfers or keeps stays.
    """
    table = directory.table.read()
    held: Counter[int] = Counter()
    for entry in table.entries:
        for run in entry.runs:
            held[run.segment] += run.count
    for number in sorted(table.segments, key=lambda number: (held[number], -number)):
        if len(table.segments) <= segments:
            break
        inside = [entry for entry in table.entries if any(run.segment == number for run in entry.runs)]
        with directory.locks() as locks:
            if all(entry.state is State.READY and try_evict(entry, locks) for entry in inside):
                # The file goes after the table: should this process die in between, it is a stray.
                table = directory.table.write(
                    replace(
                        table.without({entry.slot for entry in inside}),
                        segments=tuple(other for other in table.segments if other != number),
                    )
                )
                directory.remove_segment(number)


def add_segment(directory: PoolDirectory, *, most: int | None, room: Callable[[], bool]) -> bool:
    """Allocate one more segment unless there are `most` of them already (None: no bound) or there is no room.

    Waits for others who allocate, but holds the table's lock only for bookkeeping.

    Raises:
        OSError: the file system has no space after all; nothing is left.
    """
    with directory.allocating(wait=True):
        with directory.locked():
            table = directory.table.read()
            number = table.next_segment
        if (most is not None and len(table.segments) >= most) or not room():
            return False
        directory.create_segment(number, nbytes=directory.table.segment_bytes)
        with directory.locked():
            directory.table.change(lambda now: replace(now, segments=(*now.segments, number), next_segment=number + 1))
    return True


def by_state(directory: PoolDirectory) -> HostBytes:
    """Bytes of the pool's pages by state. Needs no lock, so a load that begins or ends meanwhile is seen or not."""
    table = directory.table.read()
    ready = filling = transferred = 0
    for entry in table.entries:
        if entry.state is State.FILLING:
            filling += entry.host_bytes
        elif directory.holding(entry_byte(entry.slot)) is Holding.FREE:
            ready += entry.host_bytes
        else:
            transferred += entry.host_bytes
    free = len(table.segments) * directory.table.segment_bytes - ready - filling - transferred
    return HostBytes(live=ready, filling=filling, in_transfer=transferred, free=free)


def _free(table: Table, per_segment: int) -> list[Run]:
    return free_runs(table.segments, per_segment, (run for entry in table.entries for run in entry.runs))
