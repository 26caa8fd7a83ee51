# SPDX-License-Identifier: Apache-2.0
"""What the log says of a compaction: the figures before and after, whoever asked for it."""

from __future__ import annotations

import logging

from ballast_contract.quantities import human
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult

_log = logging.getLogger(__name__)


def tell(mode: CompactionMode, result: CompactionResult | Refusal) -> None:
    """One line for a compaction that has ended, or was refused. Not on the device thread: a log may block."""
    if isinstance(result, Refusal):
        _log.warning(
            "memory was not compacted: %s",
            result.message,
            extra={"event": "memory.compaction_refused", "mode": mode.value, "reason": result.reason.value},
        )
        return
    _log.info(
        "memory compacted: the largest free block was %s and is %s, fragmentation %.0f %% and %.0f %%, %s moved, %d models "
        "reloaded in %.3f s",
        human(result.largest_free_before),
        human(result.largest_free_after),
        100 * result.fragmentation_before,
        100 * result.fragmentation_after,
        human(result.moved_bytes),
        len(result.reloaded),
        result.seconds_until_callable,
        extra={
            "event": "memory.compacted",
            "mode": mode.value,
            "largest_free_before": result.largest_free_before,
            "largest_free_after": result.largest_free_after,
            "fragmentation_before": result.fragmentation_before,
            "fragmentation_after": result.fragmentation_after,
            "resident_bytes": result.resident_bytes,
            "moved_bytes": result.moved_bytes,
            "seconds_until_moved": result.seconds_until_moved,
            "seconds_until_callable": result.seconds_until_callable,
            "reloaded": list(result.reloaded),
            "not_reloaded": {name: refusal.message for name, refusal in result.not_reloaded.items()},
        },
    )
