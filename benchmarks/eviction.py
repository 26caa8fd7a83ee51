# SPDX-License-Identifier: Apache-2.0
"""Time to choose who goes, and what the choice costs compared with the best of all sets.

The search is `residency.eviction.cheapest_set`, which gets the residents in order of their value; a decision is the whole
way there: every resident is looked at, valued, sorted and put down for the record, then searched. Both are timed in
processor time of the thread, since the machine may be doing something else too. Cost is compared with brute force over all
sets of 12.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final, cast

import numpy as np

from ballast_contract.config import ResidencyWish
from ballast_worker.residency import priority
from ballast_worker.residency.admission import Excluded, Resident, free_bytes
from ballast_worker.residency.board import Board
from ballast_worker.residency.eviction import cheapest_set, cost
from ballast_worker.residency.ledger import Ledger
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.residency.records import Intents, Model, Phase, Purpose, Weights
from benchmarks import report
from benchmarks.summary import quantile
from benchmarks.traces import catalogue

RESIDENTS: Final = (8, 64, 512, 4096)
CHECKED: Final = 12
LINK_BYTES_PER_SECOND: Final = 55e9


def residents(seed: int, count: int) -> list[Resident]:
    """Residents of many sizes, uses and ages, in order of their keys."""
    chosen = random.Random(f"residents {seed}")
    found = []
    for index, nbytes in enumerate(catalogue(seed, count)):
        key = priority.key(
            reload_seconds=0.0003 + nbytes / LINK_BYTES_PER_SECOND,
            nbytes=nbytes,
            uses=chosen.paretovariate(1.0),
            idle_seconds=chosen.expovariate(0.01),
        )
        found.append(Resident(str(index), str(index), nbytes, key, queued=False, excluded=Excluded.NOT))
    return sorted(found, key=lambda resident: resident.key)


def shortfall(seed: int, candidates: Sequence[Resident]) -> int:
    """What one more model of the catalogue needs; never more than the residents have."""
    (nbytes,) = catalogue(seed + 1_000_000, 1)
    return min(nbytes, sum(candidate.nbytes for candidate in candidates))


def cheapest_cost(candidates: Sequence[Resident], needed: int) -> float:
    """The cost of the cheapest set that frees so much, by trying all of them."""
    top = candidates[-1].key
    choices = np.array(list(itertools.product((0, 1), repeat=len(candidates))))
    freed = choices @ np.array([candidate.nbytes for candidate in candidates])
    costs = choices @ np.array([cost(candidate, top) for candidate in candidates])
    return float(costs[freed >= needed].min())


def cost_ratio(candidates: Sequence[Resident], needed: int) -> float:
    """The cost of the set that the search chooses over that of the cheapest."""
    chosen = cheapest_set(candidates, needed) or []
    if sum(resident.nbytes for resident in chosen) < needed:
        raise RuntimeError(f"{needed} bytes were to be freed, {chosen} does not")
    top = candidates[-1].key
    return sum(cost(resident, top) for resident in chosen) / cheapest_cost(candidates, needed)


def hard_cases(seed: int) -> list[Resident]:
    """Twelve of nearly equal value and sizes that seldom add up: where order by value is a bad guide."""
    chosen = random.Random(f"hard {seed}")
    sizes = [chosen.choice((3, 5, 7, 11, 13)) * chosen.choice((1, 1, 1, 10)) for _ in range(CHECKED)]
    found = [
        Resident(str(index), str(index), size << 26, chosen.uniform(0.0, 0.5), queued=False, excluded=Excluded.NOT)
        for index, size in enumerate(sizes)
    ]
    return sorted(found, key=lambda resident: resident.key)


def board(candidates: Sequence[Resident]) -> Board:
    """A worker's own books with these residents, none of which executes or waits."""
    extents = {}
    for ticket, resident in enumerate(candidates):
        bundle = cast("Any", _Bundle(_Layout(resident.nbytes)))
        model = Model(ResidentModel(resident.model, bundle, ResidencyWish.UNPINNED, 0), 1)
        model.reload_seconds, model.uses = 0.0003 + resident.nbytes / LINK_BYTES_PER_SECOND, 2.0
        extents[resident.extent] = Weights(
            resident.extent,
            model,
            bundle,
            Purpose.WANTED,
            ticket,
            0.0,
            phase=Phase.READY,
            last_use=-resident.nbytes / 1e9,
        )
    return Board(
        memory=cast("Any", None),
        demand=cast("Any", _NoDemand()),
        listener=cast("Any", None),
        ledger=Ledger(wall_clock=time.time),
        clock=lambda: 100.0,
        models={},
        extents=extents,
        intents=Intents(),
        notices=[],
        tickets=itertools.count(1),
    )


class _Layout:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class _Bundle:
    def __init__(self, layout: _Layout) -> None:
        self.layout = layout


class _NoDemand:
    def queued(self, model: str) -> int:
        """Nobody waits."""
        del model
        return 0

    def executing(self, model: str) -> bool:
        """Nothing executes."""
        del model
        return False


def microseconds(action: Callable[[], object]) -> float:
    """Processor time of an action, the best of five runs: what else the machine does takes caches from all but some."""
    taken = []
    for _ in range(5):
        began = time.thread_time_ns()
        action()
        taken.append(time.thread_time_ns() - began)
    return min(taken) / 1e3


def spread(taken: Sequence[float]) -> dict[str, float]:
    """What reports say of many times."""
    return {"p50": median(taken), "p99": quantile(taken, 0.99)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Searches by number of residents, decisions likewise, and the worst cost ratio at twelve."""
    searches, decisions = {}, {}
    for count in RESIDENTS:
        cases = max(20, options.cases // max(1, count // 64))
        report.progress(f"{count} residents, {cases} cases")
        searching, deciding = [], []
        for seed in range(cases):
            candidates = residents(seed, count)
            needed, books = shortfall(seed, candidates), board(candidates)
            searching.append(microseconds(partial(cheapest_set, candidates, needed)))
            deciding.append(microseconds(lambda: free_bytes(books.residents(), needed)))  # noqa: B023 - called at once
        searches[str(count)], decisions[str(count)] = spread(searching), spread(deciding)
    report.progress(f"brute force over {CHECKED} residents")
    ratios = []
    for seed in range(options.cases // 2):
        candidates = residents(seed, CHECKED)
        ratios.append(cost_ratio(candidates, shortfall(seed, candidates)))
        candidates = hard_cases(seed)
        total = sum(candidate.nbytes for candidate in candidates)
        ratios.append(cost_ratio(candidates, 1 + random.Random(seed).randrange(total)))
    return {
        "search_microseconds": searches,
        "worst_cost_ratio_at_12": max(ratios),
        "decision_microseconds": decisions,
    }


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", type=report.above_zero(int), default=1000, help="shortfalls at up to 64 residents (default 1000)"
    )


if __name__ == "__main__":
    report.main("eviction", measure, description=__doc__, arguments=_arguments)
