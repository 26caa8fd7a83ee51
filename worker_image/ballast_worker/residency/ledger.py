# SPDX-License-Identifier: Apache-2.0
"""What residency has done and decided, for readers on other threads."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import Statistics
from ballast_worker.residency.admission import Resident
from ballast_worker.residency.demand import Candidate, Decision, Refusal
from ballast_worker.residency.protocol import ModelSnapshot, ResidencySnapshot, Tier
from ballast_worker.residency.records import Model

DECISIONS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the process started; see `ResidencySnapshot`."""

    loads: int = 0
    on_demand_loads: int = 0
    load_seconds: float = 0.0
    load_bytes: int = 0
    evictions: int = 0
    admission_failures: int = 0
    fallback_compactions: int = 0
    compactions: int = 0
    moved_bytes: int = 0
    compaction_seconds: float = 0.0
    largest_waiting_bytes: int = 0
    load_wait_seconds: float = 0.0
    eviction_age_seconds: float | None = None


class Ledger:
    """Written on the device thread, read on any.

    Invariant: `_reports`, `_counters` and `_decisions` change together under the lock, and what they hold is immutable.
    """

    def __init__(self, *, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._reports: dict[str, tuple[ModelSnapshot, Bundle]] = {}
        self._counters = Counters()
        self._decisions: deque[tuple[Decision, tuple[Resident, ...]]] = deque(maxlen=DECISIONS_KEPT)
        self._sequence = itertools.count(1)

    def count(self, **amounts: float) -> None:
        """Add to the totals, by the names of `Counters`."""
        with self._lock:
            now = self._counters
            self._counters = replace(now, **{name: getattr(now, name) + amount for name, amount in amounts.items()})

    def evicted(self, *, age_seconds: float) -> None:
        """Count an eviction."""
        with self._lock:
            now = self._counters
            self._counters = replace(now, evictions=now.evictions + 1, eviction_age_seconds=age_seconds)

    def set_largest_waiting(self, nbytes: int) -> None:
        """The largest model that waits for room, or was refused it; 0: none."""
        if nbytes != self._counters.largest_waiting_bytes:
            with self._lock:
                self._counters = replace(self._counters, largest_waiting_bytes=nbytes)

    def report(self, model: Model) -> None:
        """Publish what readers may know of a model."""
        live = model.live
        snapshot = ModelSnapshot(
            name=model.name,
            tier=Tier.NONE if live is None else Tier.DEVICE,
            digest=None if live is None else live.bundle.digest,
            wish=ResidencyWish(model.spec.wish),
            loading=model.incoming is not None or bool(model.intent),
            load_seconds=model.load_seconds,
            refusal=model.refusal,
            evictions=model.evictions,
        )
        with self._lock:
            self._reports[model.name] = (snapshot, model.spec.bundle)

    def drop(self, name: str) -> None:
        """Forget a model."""
        with self._lock:
            self._reports.pop(name, None)

    def decide(
        self,
        *,
        model: str,
        kind: str,
        verdict: str,
        needed: int,
        memory: Statistics,
        residents: Iterable[Resident] = (),
        evicted: Iterable[str] = (),
        moved: int = 0,
        refusal: Refusal | None = None,
    ) -> None:
        """Record a decision. `memory` and `residents` are what it was based on."""
        decision = Decision(
            sequence=next(self._sequence),
            unix_seconds=self._wall_clock(),
            model=model,
            kind=kind,
            verdict=verdict,
            needed=needed,
            free=memory.free,
            largest_free=memory.largest_free,
            evicted=tuple(evicted),
            moved=moved,
            refusal=refusal,
        )
        with self._lock:
            self._decisions.appendleft((decision, tuple(residents)))

    def decisions(self) -> tuple[Decision, ...]:
        """The last decisions, newest first."""
        with self._lock:
            kept = list(self._decisions)
        # Most decisions are never asked for, so their candidates are spelled out only here.
        return tuple(replace(decision, candidates=_candidates(decision, residents)) for decision, residents in kept)

    def snapshot(self, on_host: Callable[[Bundle], bool]) -> ResidencySnapshot:
        """Everything at one moment; `on_host` tells whether a bundle has a host copy."""
        with self._lock:
            reports = list(self._reports.values())
            counters = self._counters
        models = tuple(
            replace(report, tier=Tier.HOST) if report.tier is Tier.NONE and on_host(bundle) else report
            for report, bundle in reports
        )
        return ResidencySnapshot(models=models, **asdict(counters))


def _candidates(decision: Decision, residents: tuple[Resident, ...]) -> tuple[Candidate, ...]:
    gone = set(decision.evicted)
    return tuple(
        Candidate(
            model=resident.model,
            nbytes=resident.nbytes,
            priority=math.exp2(resident.key),
            queued=resident.queued,
            chosen=resident.model in gone,
            excluded=resident.excluded.value,
        )
        for resident in residents
    )
