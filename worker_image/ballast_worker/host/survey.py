# SPDX-License-Identifier: Apache-2.0
"""Looking at a host pool from outside."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ballast_worker.bundle.digests import WEIGHTS_PREFIX
from ballast_worker.host.directory import TABLE_FILE, boot_id
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.lockbytes import entry_byte, keep_byte
from ballast_worker.host.locks import Holding, held_by_others
from ballast_worker.host.pages import PAGE_BYTES
from ballast_worker.host.table import State
from ballast_worker.host.table_file import TableFile


@dataclass(frozen=True, slots=True)
class Region:
    """One host copy.

    Attributes:
        name: of the bundle it was filled from.
        digest: of the weights, as in manifests.
        layout_version: of its packing.
        nbytes: of the packed weights.
        host_bytes: of its pages.
        runs: pieces of neighbouring pages.
        ready: it can be loaded from; else it is being filled, or its filler died.
        filled: bytes read so far.
        in_transfer: somebody loads from it or fills it now.
        kept: a worker wants it kept.
        loaded_ns: when it was last loaded from, on the node's monotonic clock in nanoseconds.
    """

    name: str
    digest: str
    layout_version: int
    nbytes: int
    host_bytes: int
    runs: int
    ready: bool
    filled: int
    in_transfer: bool
    kept: bool
    loaded_ns: int


@dataclass(frozen=True, slots=True)
class Survey:
    """A pool at one moment.

    Attributes:
        path: its directory.
        segments: how many.
        segment_bytes: of each.
        regions: the most recently loaded first.
    """

    path: Path
    segments: int
    segment_bytes: int
    regions: tuple[Region, ...]

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that belong to a region."""
        return sum(region.host_bytes for region in self.regions)


def survey(path: Path) -> Survey:
    """Look at a pool without changing anything or waiting for anybody.

    Raises:
        HostPoolError: there is no pool, or none that is understood.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostPoolError(f"there is no host pool at {path}: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        try:
            table_fd = os.open(TABLE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, table_fd)
        except OSError as error:
            raise HostPoolError(f"there is no host pool at {path}: {TABLE_FILE}: {error.strerror}") from error
        file = TableFile(table_fd, str(path / TABLE_FILE))
        if (reason := file.understood(boot_id=boot_id())) is not None:
            raise HostPoolError(f"the host pool at {path} is not understood: {reason}")
        table = file.read()
        found = []
        for entry in table.entries:
            filled, loaded_ns = file.marks(entry.slot)
            found.append(
                Region(
                    name=entry.name,
                    digest=WEIGHTS_PREFIX + entry.digest.hex(),
                    layout_version=entry.layout_version,
                    nbytes=entry.nbytes,
                    host_bytes=sum(run.count for run in entry.runs) * PAGE_BYTES,
                    runs=len(entry.runs),
                    ready=entry.state is State.READY,
                    filled=filled,
                    in_transfer=held_by_others(table_fd, entry_byte(entry.slot)) is not Holding.FREE,
                    kept=held_by_others(table_fd, keep_byte(entry.slot)) is not Holding.FREE,
                    loaded_ns=loaded_ns,
                )
            )
    found.sort(key=lambda region: -region.loaded_ns)
    return Survey(path, len(table.segments), file.segment_bytes, tuple(found))
