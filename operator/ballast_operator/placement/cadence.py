# SPDX-License-Identifier: Apache-2.0
"""When models are assigned anew, and when memory is compacted after it."""

from __future__ import annotations


def repack_due(compute_seconds: float, *, first_done: bool, first_after: int, every: int) -> bool:
    """Whether enough device time has passed for a repack.

    Args:
        compute_seconds: Device seconds of all workers since the last repack for this cause.
        first_done: A repack for this cause has been made; placements at start and on request do not count.
        first_after: Device seconds until the first; 0 leaves it to `every`.
        every: Device seconds until each further one.
    """
    return compute_seconds >= (first_after if first_after and not first_done else every)


def compaction_due(repacks: int, *, enabled: bool, every: int, changed: bool) -> tuple[int, bool]:
    """Count one repack, and say whether compaction follows it.

    A repack that changed no worker counts but never fires: the count waits for one that does.

    Args:
        repacks: Repacks since the last compaction, without this one.
        enabled: Compaction is not disabled; otherwise nothing is counted.
        every: Repacks between compactions.
        changed: The models of at least one worker changed.

    Returns:
        The new count, and whether the changed workers are to be compacted now.
    """
    if not enabled:
        return repacks, False
    repacks += 1
    return (0, True) if repacks >= every and changed else (repacks, False)
