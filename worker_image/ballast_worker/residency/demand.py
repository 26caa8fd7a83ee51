# SPDX-License-Identifier: Apache-2.0
"""What residency learns of the queues, and what it tells them: the seam between residency and serving."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ballast_contract.reasons import Reason


class Demand(Protocol):
    """The queues as residency sees them. Called on the device thread only; every call is O(1)."""

    def queued(self, model: str) -> int:
        """Requests that wait for this model."""
        ...

    def executing(self, model: str) -> bool:
        """Whether an execution of this model has been enqueued and not been seen to end."""
        ...


class Readiness(Enum):
    """What the device thread may do with a model now."""

    READY = "ready"
    """Its weights are on the device: it can be leased."""
    LOADING = "loading"
    """A load is under way, or waits for one; its end is announced."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed answer to a request or load that cannot be served.

    Attributes:
        reason: from the closed list.
        message: what, value, limit, remedy.
        retry_after_seconds: when another try makes sense; None when only a change of the spec helps.
    """

    reason: Reason
    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resident that admission looked at.

    Attributes:
        model: its name.
        nbytes: bytes it would free.
        priority: its value, in reload seconds per byte and second (see `priority`); low goes first.
        queued: requests wait for it.
        chosen: it was evicted.
        excluded: why it could not go (pinned, executing, leased, loading, recent), or empty.
    """

    model: str
    nbytes: int
    priority: float
    queued: bool
    chosen: bool = False
    excluded: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of admission, with everything it looked at; kept in a bounded ring and returned by Explain.

    Attributes:
        sequence: grows by one per decision.
        unix_seconds: wall clock.
        model: whom it was about.
        kind: load or compact.
        verdict: admitted, admittedAfterEviction, admittedAfterMoves, waiting or refused.
        needed: bytes asked for.
        free: bytes free before.
        largest_free: largest free block before.
        candidates: every resident, in order of priority.
        evicted: who went.
        moved: bytes slid.
        refusal: why not, when refused.
    """

    sequence: int
    unix_seconds: float
    model: str
    kind: str
    verdict: str
    needed: int
    free: int
    largest_free: int
    candidates: tuple[Candidate, ...] = ()
    evicted: tuple[str, ...] = ()
    moved: int = 0
    refusal: Refusal | None = None
