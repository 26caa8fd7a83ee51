# SPDX-License-Identifier: Apache-2.0
"""What is done to the regions of a pool: find room, drop what the dead left, trim. All of it under the table's lock.

Evicting is one change of the table: a region that is not in it has no pages. Nothing has to be unmapped or unlocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Locks
from ballast_worker.host.pages import PAGE_BYTES, Run, free_runs, take
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


def find_room(directory: PoolDirectory, table: Table, pages: int, locks: Locks, *, evict: bool) -> Room | None:
    """Find pages for a region; None when there are not enough.

    Args:
        directory: of the pool.
        table: as it is now.
        pages: how many.
        locks: hold the victims' locks until the table has been written.
        evict: regions that nobody transfers or keeps may go, the least recently loaded first.
    """
    per_segment = pages_per_segment(directory)
    room = take(_free(table, per_segment), pages)
    if room is not None or not evict:
        return None if room is None else Room(room, table, ())
    missing = pages - sum(run.count for run in _free(table, per_segment))
    victims: list[Entry] = []
    for entry in _evictable(directory, table, locks):
        victims.append(entry)
        missing -= sum(run.count for run in entry.runs)
        if missing <= 0:
            break
    if missing > 0:
        return None
    left = table.without({victim.slot for victim in victims})
    runs = take(_free(left, per_segment), pages)
    assert runs is not None, "the victims' pages were counted"  # noqa: S101
    return Room(runs, left, tuple(victims))


def _evictable(directory: PoolDirectory, table: Table, locks: Locks) -> Iterator[Entry]:
    """Regions that nobody transfers or keeps, the least recently loaded first; `locks` holds those that were answered."""
    ready = [entry for entry in table.entries if entry.state is State.READY]
    for entry in sorted(ready, key=lambda entry: directory.table.marks(entry.slot)[1]):
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


def drop_dead(directory: PoolDirectory) -> Table:
    """Drop regions whose filler died and regions without their segments. Hold the table's lock."""
    table = directory.table.read()
    with directory.locks() as locks:
        dead = {
            entry.slot
            for entry in table.entries
            if (entry.state is State.FILLING and locks.try_exclusive(entry_byte(entry.slot)))
            or not {run.segment for run in entry.runs} <= set(table.segments)
        }
        return directory.table.write(table.without(dead)) if dead else table


def drop_missing_segments(directory: PoolDirectory) -> None:
    """Take segments out of the table whose files cannot be used, with the regions in them. Hold the table's lock."""
    table = directory.table.read()
    usable = tuple(number for number in table.segments if directory.has_segment(number))
    if usable != table.segments:
        directory.table.write(replace(table, segments=usable))


def remove_strays(directory: PoolDirectory) -> None:
    """Remove segment files that are not in the table: what a process left that died while it allocated."""
    with directory.allocating(wait=False) as mine:
        if not mine:
            return
        with directory.locked():
            strays = directory.segment_files() - set(directory.table.read().segments)
        for number in strays:
            directory.remove_segment(number)


def trim(directory: PoolDirectory, *, segments: int) -> int:
    """Give segments beyond so many back, those first that hold the least. Hold the table's lock.

    A segment with a region that somebody transfers or keeps stays.

    Returns:
        Segments that are left.
    """
    table = directory.table.read()
    held = dict.fromkeys(table.segments, 0)
    for entry in table.entries:
        for run in entry.runs:
            held[run.segment] += run.count
    for number in sorted(held, key=lambda number: (held[number], -number)):
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
    return len(table.segments)


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


def used_bytes(entries: Iterable[Entry]) -> int:
    """Bytes of the pages of published regions."""
    return sum(entry.host_bytes for entry in entries if entry.state is State.READY)


def _free(table: Table, per_segment: int) -> list[Run]:
    return free_runs(table.segments, per_segment, (run for entry in table.entries for run in entry.runs))
