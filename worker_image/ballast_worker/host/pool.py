# SPDX-License-Identifier: Apache-2.0
"""The host pool: copies of weights in segments of shared memory, and streams where there is no room for a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ballast_worker.bundle.reader import Bundle
from ballast_worker.host.store import HostStatistics, Transfer


@dataclass(frozen=True, slots=True)
class PageLocker:
    """How mapped host memory is page-locked for the device; without one nothing is locked.

    Attributes:
        lock: called with address and bytes, both multiples of 2 MiB; returns whether the range is locked now. It must
            cope with read-only memory.
        unlock: called with an address that `lock` has locked, before it is unmapped.
    """

    lock: Callable[[int, int], bool]
    unlock: Callable[[int], None]


class HostPool:
    """Implements `host.store.HostStore`; the same code for a private directory and for one that workers share."""

    def __init__(
        self,
        *,
        directory: Path,
        budget: int | None,
        segment_bytes: int = 64 << 20,
        mode: int = 0o660,
        ring_bytes: int = 64 << 20,
        file_threads: int = 4,
        locker: PageLocker | None = None,
        on_fallback: Callable[[str], None] | None = None,
    ) -> None:
        """Open the pool: sweep what a killed worker left, trim to the budget, allocate, map and lock the segments.

        Args:
            directory: the pool's own directory, created when missing; the memory is where it lies (tmpfs).
            budget: bytes that copies may take; 0 keeps none, None is unlimited.
            segment_bytes: size of a segment file, a multiple of 2 MiB.
            mode: permission bits of the files.
            ring_bytes: memory through which weights without a copy are streamed.
            file_threads: threads that read one model's file.
            locker: page-locks segments and ring.
            on_fallback: told why a copy could not be kept; from any thread.

        Raises:
            HostPoolError: the directory cannot be used: another owner or mode, another layout or segment size.
        """
        raise NotImplementedError

    def acquire(self, bundle: Bundle, *, keep: bool, progress: Callable[[int], None] | None = None) -> Transfer:
        """See `HostStore.acquire`."""
        raise NotImplementedError

    def has(self, bundle: Bundle) -> bool:
        """See `HostStore.has`."""
        raise NotImplementedError

    def evict(self, bundle: Bundle) -> bool:
        """See `HostStore.evict`."""
        raise NotImplementedError

    def unkeep(self, bundle: Bundle) -> None:
        """See `HostStore.unkeep`."""
        raise NotImplementedError

    def statistics(self) -> HostStatistics:
        """See `HostStore.statistics`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `HostStore.close`."""
        raise NotImplementedError
