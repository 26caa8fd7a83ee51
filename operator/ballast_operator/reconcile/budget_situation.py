# SPDX-License-Identifier: Apache-2.0
"""Everything that the status of a WeightBudget is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.reconcile.pods import Trouble, Wanted
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.workers import Worker

FRAGMENTED_PERCENT: Final = 50


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a budget's status is made of.

    `creation` is why no pod can be made; `undeleted` why something that should go is still there; `unrecorded` why models
    stay where they are, a sentence for each; `blocked` why an update waits; `fragmented_since` when each worker's memory was
    first seen in pieces, by uid, on the clock of `now`; `models` counts what each worker holds.
    """

    verdict: WeightBudgetSpec | Rejection
    name: str
    workers: Sequence[Worker]
    now: float
    wanted: Wanted | None = None
    creation: Trouble | None = None
    undeleted: Trouble | None = None
    unrecorded: Sequence[str] = ()
    blocked: str = ""
    fragmented_since: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    unknown_fields: Sequence[str] = ()
    paused: bool = False
    conflict: str = ""
    unrouted: str = ""
    crowded: str = ""
    stale_definitions: Sequence[str] = ()
    host_nodes: Sequence[str] = ()


def ready_workers(workers: Sequence[Worker]) -> list[Worker]:
    """Workers that answer calls, as their pods and they themselves say."""
    return [w for w in workers if w.pod.live and w.pod.ready and w.heard and w.view is not None and w.view.serving]


def impaired(workers: Sequence[Worker]) -> list[Worker]:
    """Workers that answer calls and say that something is wrong all the same: with their host copies."""
    return [w for w in ready_workers(workers) if w.view is not None and w.view.condition.failure.reason]


def leaking(workers: Sequence[Worker]) -> list[Worker]:
    """Workers that answer calls and have lost device memory."""
    return [w for w in ready_workers(workers) if w.view is not None and w.view.device and w.view.device.leaked_bytes]


def in_pieces(worker: Worker) -> bool:
    """Whether a worker's free memory is too fragmented: for what waits, or by more than half."""
    device = worker.view.device if worker.view is not None else None
    if device is None or not worker.heard:
        return False
    if device.largest_free_bytes < device.largest_waiting_bytes <= device.free_bytes:
        return True
    return 100 * (device.free_bytes - device.largest_free_bytes) > FRAGMENTED_PERCENT * device.free_bytes


def fragmentation_percent(free: int, largest: int) -> int:
    """100 x (1 - largest / free), rounded down; 0 when the free memory is one block or none."""
    return 0 if free <= 0 else max(0, 100 - -(-100 * largest // free))
