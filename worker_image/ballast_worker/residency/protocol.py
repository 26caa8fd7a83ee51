# SPDX-License-Identifier: Apache-2.0
"""The interface of residency: which model is on which tier, and how it gets there.

Threads: every method runs on the device thread, except `snapshot` and `decisions`, which any thread may call. Nothing
here waits for a copy, a file or a build: a load is handed to the copy thread, whose end comes back as a call posted to
the device thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import Lease
from ballast_worker.residency.demand import Decision, Readiness, Refusal


class Tier(Enum):
    """Where a model's weights are."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


class CompactionMode(Enum):
    """How the free device memory is made one block."""

    MOVE = "move"
    """Slide extents; nothing is dropped, nothing reloaded. In XLA's allocator, where nothing slides, free and reload all."""
    FREE = "free"
    """Free what is not pinned, then reload the named models, largest first."""


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """What residency must know of a model before it may load it.

    Attributes:
        name: what clients call.
        bundle: the open bundle whose bytes are to serve.
        wish: what the user wants.
        scratch_bytes: the largest of its programs.
    """

    name: str
    bundle: Bundle
    wish: ResidencyWish
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model at one moment.

    Attributes:
        tier: where its weights are; DEVICE only when they are complete there.
        digest: of the bundle whose weights are on the device now; None when none are. A replaced bundle serves until the
            new one is complete.
        loading: a load is under way.
        load_seconds: of the last load, decision to callable; None before the first.
        refusal: of the last load, None after a success.
        evictions: how often its weights left the device to make room.
    """

    name: str
    tier: Tier
    digest: str | None
    wish: ResidencyWish
    loading: bool
    load_seconds: float | None
    refusal: Refusal | None
    evictions: int


@dataclass(frozen=True, slots=True)
class ResidencySnapshot:
    """All models and the counters, consistent with one another.

    Attributes:
        loads, load_seconds, load_bytes: of loads that have ended well; seconds from decision to callable.
        on_demand_loads: the part of `loads` that requests waited for, without what a compaction brought back.
        load_wait_seconds: the part of `load_seconds` that was waiting for a thread or for room.
        evictions: residents that left to make room.
        eviction_age_seconds: how long the one evicted last had been idle; None before the first.
        admission_failures: loads refused for want of room.
        fallback_compactions: of `compactions`, those that admission could not do without.
        moved_bytes: slid on the device, for compactions and for single loads.
        compaction_seconds: in which those bytes moved; what compactions waited for executions is not part of it.
        largest_waiting_bytes: the largest model that waits for room, or was refused a block of it; 0: none.
    """

    models: tuple[ModelSnapshot, ...]
    loads: int
    load_seconds: float
    load_bytes: int
    evictions: int
    admission_failures: int
    fallback_compactions: int
    compactions: int
    moved_bytes: int
    compaction_seconds: float
    largest_waiting_bytes: int
    on_demand_loads: int = 0
    load_wait_seconds: float = 0.0
    eviction_age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did.

    Attributes:
        reloaded: models whose weights were brought back, in that order.
        resident_bytes: bytes in extents afterwards.
        largest_free_before, largest_free_after: bytes.
        fragmentation_before, fragmentation_after: 0..1.
        moved_bytes: slid.
        seconds_until_moved: from the request, the wait for running executions included, until no more bytes moved on the
            device.
        seconds_until_callable: likewise, until every named model was callable.
        not_reloaded: why, for each named model that did not come back.
    """

    reloaded: tuple[str, ...]
    resident_bytes: int
    largest_free_before: int
    largest_free_after: int
    fragmentation_before: float
    fragmentation_after: float
    moved_bytes: int
    seconds_until_moved: float
    seconds_until_callable: float
    not_reloaded: dict[str, Refusal] = field(default_factory=dict)


class Residency(Protocol):
    """Owns every model's tier on this worker."""

    def register(self, model: ResidentModel) -> Refusal | None:
        """Know a model from now on; a pinned one begins to load. Refuses at once what can never fit.

        A model that is known is replaced: its new bytes are loaded beside the old ones where they fit, and serve from
        then on; until then the old ones serve. The same bundle with another wish only changes the wish.
        """
        ...

    def forget(self, name: str, done: Callable[[], None]) -> None:
        """Know it no longer; its weights leave as soon as nothing executes from them, then `done` is called."""
        ...

    def want(self, name: str) -> Readiness | Refusal:
        """Ask for a model on the device, for requests that wait. Starts a load where room can be had; idempotent.

        Readiness.LOADING means: the listener will be called. A loaded model is kept for the waiter until it has been
        leased once, or its queue is empty.
        """
        ...

    def lease(self, name: str) -> Lease:
        """Right to execute; only when `want` answered READY in this turn of the device thread."""
        ...

    def serving(self, name: str) -> Bundle | None:
        """The bundle whose bytes a lease gives now; the one that the next load brings while none is on the device; None
        for a model that is not known. O(1). While a replacement loads beside it, that is the old one: whoever executes
        picks the executables by it.
        """
        ...

    def expected_load_seconds(self, name: str) -> float | None:
        """How long a load of this model has taken lately, in seconds; None before the first, and for a model that is on the
        device and only held back.
        """
        ...

    def dispatched(self, name: str) -> None:
        """An execution of this model has ended: feeds frequency and recency."""
        ...

    def compact(
        self, mode: CompactionMode, reload: Sequence[str], done: Callable[[CompactionResult | Refusal], None]
    ) -> None:
        """Compact now, or as soon as running executions have ended; `done` is called on the device thread."""
        ...

    def snapshot(self) -> ResidencySnapshot:
        """Consistent, from any thread."""
        ...

    def decisions(self) -> tuple[Decision, ...]:
        """The last decisions, newest first, from any thread."""
        ...


class Listener(Protocol):
    """Whom residency tells, on the device thread."""

    def loaded(self, model: str) -> None:
        """The model can be leased now."""
        ...

    def refused(self, model: str, refusal: Refusal) -> None:
        """A load that `want` had begun has failed, or one that nobody waits for can never succeed; device bytes are as
        before it.
        """
        ...

    def changed(self, model: str) -> None:
        """Its tier or state is another now; for reporting."""
        ...
