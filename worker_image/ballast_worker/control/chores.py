# SPDX-License-Identifier: Apache-2.0
"""What a worker that serves does besides, now and then: loads ahead, compacts, sweeps the executable store."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_worker.control import compactions
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.parts import Parts
from ballast_worker.control.preparation import Workshop
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult

_TEND_SECONDS: Final = 86400.0
"""Between two looks at the executable store for what nobody uses any more."""


class Chores:
    """Owned by the control loop.

    Args:
        config: of the worker.
        lineup: its models.
        workshop: whose store is swept.
    """

    def __init__(self, config: WorkerConfig, lineup: Lineup, workshop: Workshop) -> None:
        self._lineup, self._workshop = lineup, workshop
        self._interval = 0 if config.managed else config.compaction_interval
        self._loads_at_compaction = 0
        self._compacting: Future[CompactionResult | Refusal] | None = None
        self._tend_at = 0.0

    def do(self, parts: Parts, now: float) -> None:
        """Do what is due; never blocks.

        Args:
            parts: what serves.
            now: monotonic seconds.
        """
        if self._lineup.fresh and self._lineup.settled and self._lineup.handed_over:
            # New models, at the start or later, are loaded ahead as far as memory is free; nothing is evicted for them.
            self._lineup.fresh = False
            parts.engine.post(parts.residency.fill_free)
        if self._interval:
            self._compact(parts)
        if now >= self._tend_at and self._lineup.settled:
            # Once the models of the start have used theirs: a worker that ran for long would else sweep its own.
            self._tend_at = now + _TEND_SECONDS
            views = self._lineup.views.values()
            self._workshop.tend(found for view in views for found in (view.built, view.serving) if found is not None)

    def _compact(self, parts: Parts) -> None:
        """One compaction after so many loads that requests waited for; what comes back in its course does not count."""
        running = self._compacting
        if running is not None and not running.done():
            return
        loads = parts.residency.snapshot().on_demand_loads
        if running is not None:
            self._compacting, self._loads_at_compaction = None, loads
            compactions.tell(CompactionMode.MOVE, running.result())
        elif loads - self._loads_at_compaction >= self._interval:
            self._compacting = Future()
            parts.compact(CompactionMode.MOVE, (), self._compacting.set_result)
