# SPDX-License-Identifier: Apache-2.0
"""Filling a region: one process reads the file to its place and publishes it, the others wait and see how far it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ballast_worker.bundle.digests import WEIGHTS_PREFIX
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.files import FileIdentity
from ballast_worker.bundle.layout import LAYOUT_VERSION
from ballast_worker.bundle.reader import Bundle
from ballast_worker.host import regions
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Locks
from ballast_worker.host.segments import Segments, map_at_once, unmap_early
from ballast_worker.host.table import Entry, State

_NO_FILE = FileIdentity(0, 0, 0, 0, 0)

STALLED_SECONDS = 30.0
"""A fill by somebody else that makes no progress for so long is not waited for any more: the weights are streamed."""

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.02

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Fill:
    """A region that this process is to fill, and its lock, held alone."""

    entry: Entry
    lock: Locks


def digest_of(bundle: Bundle) -> bytes:
    """The digest of a bundle's weights, which with the layout version is the key of its copy."""
    return bytes.fromhex(bundle.manifest.weights.digest.removeprefix(WEIGHTS_PREFIX))


def enter(directory: PoolDirectory, room: regions.Room, bundle: Bundle, victims: Locks) -> Fill:
    """Enter a region that is to be filled, and whatever goes for it, by one change of the table. Hold the table's lock.

    Args:
        directory: of the pool.
        room: the pages.
        bundle: whose weights they are for.
        victims: holds the locks of those that go.

    Raises:
        HostPoolError: there is no slot left.
    """
    lock = directory.locks()
    try:
        slot = _lock_slot(directory, room, lock, victims)
        entry = Entry(
            slot=slot,
            state=State.FILLING,
            layout_version=LAYOUT_VERSION,
            digest=digest_of(bundle),
            nbytes=bundle.layout.nbytes,
            identity=_NO_FILE,
            name=bundle.manifest.name,
            runs=room.runs,
        )
        directory.table.mark(slot, filled=0, loaded_ns=time.monotonic_ns())
        directory.table.write(room.table.with_entry(entry))
    except BaseException:
        lock.close()
        raise
    return Fill(entry, lock)


def _lock_slot(directory: PoolDirectory, room: regions.Room, lock: Locks, victims: Locks) -> int:
    """Take a free slot for a fill; one of a victim is free too."""
    gone = {victim.slot for victim in room.evicted}
    for slot in room.table.free_slots():
        if slot in gone:
            victims.unlock(entry_byte(slot))
            victims.unlock(keep_byte(slot))
        # Whoever has waited for an earlier fill of this slot may hold it for a moment.
        if lock.try_exclusive(entry_byte(slot)):
            return slot
    raise HostPoolError(f"{directory.path} has no slot left for one more region")


def fill(
    directory: PoolDirectory,
    segments: Segments,
    step: Fill,
    bundle: Bundle,
    *,
    threads: int,
    published: Callable[[Entry], None],
    progress: Progress | None,
) -> Entry:
    """Read the file into the region and publish it, or leave nothing of it. The lock is shared afterwards.

    Args:
        directory: of the pool.
        segments: its memory.
        step: the region.
        bundle: whose file is read.
        threads: that read it.
        published: called under the table's lock when the region can be used.
        progress: bytes read so far.

    Raises:
        BundleError: the file cannot be read, or is not what the manifest says.
        HostPoolError, OSError: the pool failed.
    """
    table, entry, done = directory.table, step.entry, 0

    def report(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        table.mark(entry.slot, filled=done, loaded_ns=0)
        if progress is not None:
            progress(done)

    try:
        with segments.window(entry.runs) as memory, bundle.open_weights() as file:
            try:
                file.read_into(
                    memory,
                    layout=bundle.layout,
                    threads=threads,
                    prepare=map_at_once,
                    release=unmap_early,
                    progress=report,
                )
            except OSError as error:
                raise BundleError("SourceNotFound", f"{bundle.path} cannot be read: {error}") from error
            ready = replace(entry, state=State.READY, identity=file.identity)
        with directory.locked():
            table.mark(entry.slot, filled=entry.nbytes, loaded_ns=time.monotonic_ns())
            table.change(lambda now: now.with_entry(ready))
            step.lock.try_shared(entry_byte(entry.slot))
            published(ready)
    except BaseException:
        with contextlib.suppress(OSError, HostPoolError), directory.locked():
            table.change(lambda now: now.without({entry.slot}))
        step.lock.close()
        raise
    return ready


def wait(
    directory: PoolDirectory,
    slot: int,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], None],
    progress: Progress | None,
) -> bool:
    """Wait until nobody fills the slot any more; False when its filler makes no progress.

    Args:
        directory: of the pool.
        slot: of the region.
        clock: monotonic seconds.
        pause: waits so many seconds.
        progress: told at each look, bytes that the filler has read so far. What it raises ends the wait.
    """
    seen, since, interval = -1, clock(), FIRST_POLL_SECONDS
    with directory.locks() as locks:
        while not locks.try_shared(entry_byte(slot)):
            done, _ = directory.table.marks(slot)
            if progress is not None:
                progress(done)
            if done != seen:
                seen, since = done, clock()
            elif clock() - since > STALLED_SECONDS:
                return False
            pause(interval)
            interval = min(2 * interval, LONGEST_POLL_SECONDS)
    return True
