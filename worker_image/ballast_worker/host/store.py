# SPDX-License-Identifier: Apache-2.0
"""The interface of the host tier: where a load gets a model's packed bytes from, and what is kept in host memory.

Threads: `acquire` and everything on a transfer run on the copy thread or on a thread of the file pool; `find`,
`statistics`, `has` and `evict` may be called from any thread and never wait for a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ballast_contract.reasons import Reason
from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.reader import Bundle


@dataclass(frozen=True, slots=True)
class HostBytes:
    """Bytes of the host pool's pages by state; the states sum to its segments.

    Attributes:
        live: of complete copies that nobody transfers now.
        filling: of copies that are being read, or whose reader died.
        in_transfer: of complete copies that somebody transfers now.
        free: of no copy.
    """

    live: int = 0
    filling: int = 0
    in_transfer: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """Bytes and counts of the host tier as this worker sees it.

    Attributes:
        budget: bytes that copies may take; None is unlimited.
        nbytes: by state, of the whole pool, whoever filled it.
        excess: bytes of segments beyond the budget, which copies that are kept or in transfer hold.
        hits: loads that found a copy.
        misses: loads that read the file.
        fills: of these, those that made a copy.
        fallbacks: of these, those that were streamed because no room could be had.
        swept_regions: regions that killed workers had left half filled, freed by this worker.
        swept_bytes: bytes that killed workers had left, freed by this worker.
    """

    budget: int | None
    nbytes: HostBytes
    excess: int
    hits: int
    misses: int
    fills: int
    fallbacks: int
    swept_regions: int
    swept_bytes: int

    @property
    def cached(self) -> int:
        """Bytes of complete copies."""
        return self.nbytes.live + self.nbytes.in_transfer


@dataclass(frozen=True, slots=True)
class HostTrouble:
    """Why host copies are not kept as they should be.

    Attributes:
        reason: of the closed list.
        message: what, where, and what to do.
    """

    reason: Reason
    message: str


class Transfer(Protocol):
    """A host copy, or a stream from the file, held for as long as one load takes. Nothing evicts it meanwhile."""

    @property
    def kept(self) -> bool:
        """A copy stays in the store afterwards (False: the bytes are streamed and gone)."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """The model's packed bytes, each exactly once. The iterator may read the file as it goes.

        Raises:
            BundleError: reason SourceChanged when the file is not what the manifest says, or changed meanwhile.
        """
        ...

    def close(self) -> None:
        """End the transfer. Idempotent. Every chunk has been released by then."""
        ...


class HostStore(Protocol):
    """Host copies of weights, keyed by weights digest and layout version."""

    def acquire(self, bundle: Bundle, *, keep: bool, progress: Callable[[int], None] | None = None) -> Transfer:
        """Get a copy, filling it from the bundle's file when there is none; waits while another worker fills it.

        Args:
            bundle: an open bundle; its weights file is opened by the store.
            keep: the user wants a copy always kept (residency system): never evicted, may exceed the budget.
            progress: bytes read so far.

        Raises:
            BundleError: the file cannot be read, is not what the manifest says, or changed meanwhile. Nothing is kept.
        """
        ...

    def find(self, bundle: Bundle, *, keep: bool) -> Transfer | None:
        """What `acquire` would return, where a copy is there and can be had without waiting for anything or anybody; else
        None, which says nothing about the copy.

        Raises:
            HostPoolError, OSError: the pool cannot be used; `acquire` says how it goes on.
        """
        ...

    def has(self, bundle: Bundle) -> bool:
        """Whether a complete copy is in the store now."""
        ...

    def evict(self, bundle: Bundle) -> bool:
        """Drop the copy unless a transfer holds it; returns whether one was dropped."""
        ...

    def unkeep(self, bundle: Bundle) -> None:
        """The copy is an ordinary one from now on."""
        ...

    def statistics(self) -> HostStatistics:
        """Counts and bytes now."""
        ...

    def close(self) -> None:
        """Let go of everything that belongs to this process; copies shared with others stay."""
        ...
