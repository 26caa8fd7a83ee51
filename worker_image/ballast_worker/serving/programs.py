# SPDX-License-Identifier: Apache-2.0
"""Which program runs which calls together: pure decisions over the compiled sizes and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ballast_worker.build.builder import BuiltProgram, Dimensions

_SMOOTHING = 0.2
"""Weight of the newest run in the smoothed cost of a program."""


@dataclass(slots=True, eq=False)
class Program:
    """A compiled size.

    Attributes:
        dimensions: concrete values of every dimension.
        rows: value of the batch dimension; 1 where there is none.
        measured: seconds that one run takes, smoothed; the builder's second run to begin with.
        seconds: what one run is believed to take, see `Bucket.learn`.
    """

    dimensions: Dimensions
    rows: int
    measured: float
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Bucket:
    """Programs that differ in the batch alone: calls of one bucket may run together.

    Attributes:
        others: values of all dimensions but the batch.
        programs: by rising rows.
    """

    others: Mapping[str, int]
    programs: list[Program] = field(default_factory=list)

    def learn(self, program: Program, seconds: float) -> None:
        """Take a run of one of the programs into account."""
        program.measured += _SMOOTHING * (seconds - program.measured)
        self.believe()

    def believe(self) -> None:
        """Set what each program is believed to take.

        A program that looks expensive is not run and so never measured again. Therefore no program is believed to take
        longer than a larger one does, nor longer than smaller ones run one after the other in its place.
        """
        bound = math.inf
        for program in reversed(self.programs):
            bound = program.seconds = min(program.measured, bound)
        per_row = math.inf
        for program in self.programs:
            program.seconds = min(program.seconds, per_row * program.rows)
            per_row = min(per_row, program.seconds / program.rows)

    @property
    def largest(self) -> int:
        """Rows of the largest program."""
        return self.programs[-1].rows


class ProgramTable:
    """The programs of one model, arranged for choosing.

    Args:
        programs: of the model, at least one.
        batch_dimension: along which calls are put together; None: every call runs alone.
        max_rows: rows put together at most; 0: as many as the largest program takes. A call that has more by itself
            runs alone.
    """

    def __init__(self, programs: Sequence[BuiltProgram], batch_dimension: str | None, max_rows: int) -> None:
        self.batch_dimension = batch_dimension
        self._max_rows = max_rows if batch_dimension is not None else 1
        buckets: dict[Dimensions, Bucket] = {}
        for built in programs:
            values = dict(built.dimensions)
            rows = values.pop(batch_dimension, 1) if batch_dimension is not None else 1
            key = tuple(sorted(values.items()))
            bucket = buckets.setdefault(key, Bucket(values))
            bucket.programs.append(Program(built.dimensions, rows, built.run_seconds))
        # The one with the fewest elements is the cheapest that a call may go to.
        self._buckets = sorted(buckets.values(), key=lambda bucket: math.prod(bucket.others.values()))
        for bucket in self._buckets:
            bucket.programs.sort(key=lambda program: program.rows)
            bucket.believe()

    def limit(self, bucket: Bucket) -> int:
        """Rows that are put together at most."""
        return min(self._max_rows or bucket.largest, bucket.largest)

    def rows(self, dimensions: Mapping[str, int]) -> int:
        """Rows of a call."""
        return dimensions[self.batch_dimension] if self.batch_dimension is not None else 1

    def bucket(self, dimensions: Mapping[str, int]) -> Bucket | None:
        """The smallest bucket that holds a call with these dimensions; None when none does."""
        rows = self.rows(dimensions)
        for bucket in self._buckets:
            if bucket.largest >= rows and all(dimensions[name] <= size for name, size in bucket.others.items()):
                return bucket
        return None

    def choose(self, bucket: Bucket, waiting: Iterable[int]) -> tuple[Program, int]:
        """The program to run next, and how many of the waiting calls go into it, in order.

        Of the programs that hold the first call, the one that serves most rows per second of the device is chosen, the
        larger one when two are equal: where a larger batch costs hardly more, everyone goes along and is padded; where
        it costs in proportion, a batch that is full goes first and the rest follows.

        Args:
            bucket: of the calls.
            waiting: rows of each waiting call, the oldest first; at least one.
        """
        limit = self.limit(bucket)
        totals: list[int] = []
        total = 0
        for rows in waiting:
            total += rows
            if totals and total > limit:
                break
            totals.append(total)
            if total >= limit:
                break
        best, best_count, best_rate = bucket.programs[-1], 1, -1.0
        for program in bucket.programs:
            if program.rows < totals[0]:
                continue
            count = _fitting(totals, program.rows)
            rate = totals[count - 1] / max(program.seconds, 1e-9)
            if rate >= best_rate:
                best, best_count, best_rate = program, count, rate
            if count == len(totals):
                break  # a still larger program takes nobody more
        return best, best_count


def _fitting(totals: Sequence[int], rows: int) -> int:
    """How many of the running totals are at most `rows`."""
    count = 0
    for total in totals:
        if total > rows:
            break
        count += 1
    return count
