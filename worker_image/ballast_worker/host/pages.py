# SPDX-License-Identifier: Apache-2.0
"""Pages of segments: which are free, and which a region gets. Pure.

A region takes any free pages, so nothing ever fragments; runs are as long as possible, because each is one copy at least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PAGE_BYTES = 2 << 20
"""The unit in which regions take host memory; a model smaller than this takes one."""


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Neighbouring pages of one segment.

    Attributes:
        segment: its number.
        first: the first page, counted from the start of the segment.
        count: pages, above 0.
    """

    segment: int
    first: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the run."""
        return self.count * PAGE_BYTES


def pages_for(nbytes: int) -> int:
    """Pages that so many bytes take."""
    return -(-nbytes // PAGE_BYTES)


def free_runs(segments: Iterable[int], pages_per_segment: int, used: Iterable[Run]) -> list[Run]:
    """The longest possible runs of pages that are in nobody's run, in order of segment and page."""
    taken: dict[int, list[Run]] = defaultdict(list)
    for run in used:
        taken[run.segment].append(run)
    free = []
    for segment in sorted(segments):
        cursor = 0
        for run in sorted(taken[segment]):
            if run.first > cursor:
                free.append(Run(segment, cursor, run.first - cursor))
            cursor = run.first + run.count
        if cursor < pages_per_segment:
            free.append(Run(segment, cursor, pages_per_segment - cursor))
    return free


def take(free: Sequence[Run], pages: int) -> tuple[Run, ...] | None:
    """Choose runs for so many pages: the shortest that holds them all, else the longest ones first; None: not enough."""
    if pages == 0:
        return ()
    fitting = [run for run in free if run.count >= pages]
    if fitting:
        best = min(fitting, key=lambda run: (run.count, run))
        return (Run(best.segment, best.first, pages),)
    chosen = []
    for run in sorted(free, key=lambda run: (-run.count, run)):
        chosen.append(Run(run.segment, run.first, min(run.count, pages)))
        pages -= chosen[-1].count
        if pages == 0:
            return tuple(chosen)
    return None
