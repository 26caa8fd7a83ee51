# SPDX-License-Identifier: Apache-2.0
"""The interface of the host tier: where a load gets a model's packed bytes from, and what is kept in host memory.

Threads: `acquire` and everything on a transfer run on the copy thread or on a thread of the file pool; `statistics`,
`has` and `evict` may be called from any thread and never wait for a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.bundle.reader import Bundle


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """Bytes and counts of the host tier as this worker sees it.

    Attributes:
        budget: bytes that copies may take; None is unlimited.
        cached: bytes of live copies.
        hits: loads that found a copy.
        misses: loads that read the file.
        fallbacks: loads that were streamed because no room could be had.
    """

    budget: int | None
    cached: int
    hits: int
    misses: int
    fallbacks: int


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
