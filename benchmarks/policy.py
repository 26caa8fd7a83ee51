# SPDX-License-Identifier: Apache-2.0
"""Reload seconds of our eviction policy, of LRU, and of the best that knows the future, on traces of published shape.

A catalogue three times the device is asked for in turn; what is not on the device is loaded, and whoever has to go for it
is chosen by the policy. Time is simulated. Ours is the worker's own: `residency.priority` gives the keys and
`residency.admission` chooses by them. LRU evicts in order of the last use until there is room. The bound is what no policy
can beat (see `lower_bound`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Protocol

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ballast_worker.residency import priority
from ballast_worker.residency.admission import Evict, Excluded, Resident, free_bytes
from benchmarks import report
from benchmarks.traces import SHAPES, Trace, catalogue

SEEDS: Final = range(5)
MODELS: Final = 60
REQUESTS: Final = 20_000
DEVICE_SHARE: Final = 3
"""The catalogue is so many times the device."""

LINK_BYTES_PER_SECOND: Final = 55e9
LOAD_SECONDS: Final = 0.0003
"""What a load takes beside its copy. Both as measured on one H200 (see gpu.json); only their ratio matters here."""

RUN_SECONDS: Final = 0.005
"""Of one execution."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Who is asked for, and what that takes.

    Attributes:
        trace: the requests.
        sizes: bytes of each model.
        capacity: bytes of the device.
    """

    trace: Trace
    sizes: Sequence[int]
    capacity: int

    def reload_seconds(self, model: int) -> float:
        """What a load of a model takes from its host copy."""
        return LOAD_SECONDS + self.sizes[model] / LINK_BYTES_PER_SECOND


class Policy(Protocol):
    """Chooses who goes. Told of everything that happens, with the simulated time."""

    def loaded(self, model: int, now: float) -> None:
        """A load has ended."""
        ...

    def used(self, model: int, now: float) -> None:
        """An execution has ended."""
        ...

    def evict(self, shortfall: int, now: float) -> list[int]:
        """Who goes so that so many more bytes are free."""
        ...


class Ballast:
    """What a worker does."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._resident: set[int] = set()
        self._uses: dict[int, float] = {}
        self._last_use: dict[int, float] = {}

    def loaded(self, model: int, now: float) -> None:
        """See `Policy.loaded`."""
        self._resident.add(model)
        self._uses.setdefault(model, 0.0)
        self._last_use.setdefault(model, now)

    def used(self, model: int, now: float) -> None:
        """See `Policy.used`."""
        self._uses[model] = 1.0 + priority.faded(self._uses[model], now - self._last_use[model])
        self._last_use[model] = now

    def evict(self, shortfall: int, now: float) -> list[int]:
        """See `Policy.evict`."""
        residents = [self._as_resident(model, now) for model in self._resident]
        residents.sort(key=lambda resident: (resident.key, self._last_use[int(resident.model)]))
        choice = free_bytes(residents, shortfall)
        if not isinstance(choice, Evict):
            raise TypeError(f"nothing frees {shortfall} bytes: {choice}")
        gone = [int(resident.model) for resident in choice.residents]
        self._resident.difference_update(gone)
        return gone

    def _as_resident(self, model: int, now: float) -> Resident:
        key = priority.key(
            reload_seconds=self._workload.reload_seconds(model),
            nbytes=self._workload.sizes[model],
            uses=self._uses[model],
            idle_seconds=now - self._last_use[model],
        )
        return Resident(str(model), str(model), self._workload.sizes[model], key, queued=False, excluded=Excluded.NOT)


class LeastRecentlyUsed:
    """LRU."""

    def __init__(self, workload: Workload) -> None:
        self._sizes = workload.sizes
        self._order: dict[int, None] = {}

    def loaded(self, model: int, now: float) -> None:
        """See `Policy.loaded`."""
        self.used(model, now)

    def used(self, model: int, now: float) -> None:
        """See `Policy.used`."""
        del now
        self._order.pop(model, None)
        self._order[model] = None

    def evict(self, shortfall: int, now: float) -> list[int]:
        """See `Policy.evict`."""
        del now
        gone = []
        while shortfall > 0:
            model = next(iter(self._order))
            del self._order[model]
            gone.append(model)
            shortfall -= self._sizes[model]
        return gone


def simulate(workload: Workload, policy: Policy) -> float:
    """Seconds that loads take in all, one request after the other."""
    now, total, free = 0.0, 0.0, workload.capacity
    resident: set[int] = set()
    for seconds, model in workload.trace:
        now = max(now, seconds)
        if model not in resident:
            if workload.sizes[model] > free:
                for gone in policy.evict(workload.sizes[model] - free, now):
                    resident.discard(gone)
                    free += workload.sizes[gone]
            resident.add(model)
            free -= workload.sizes[model]
            took = workload.reload_seconds(model)
            total += took
            now += took
            policy.loaded(model, now)
        now += RUN_SECONDS
        policy.used(model, now)
    return total


def lower_bound(workload: Workload) -> float:
    """Reload seconds that no policy stays below, also one that knows the future.

    Between two requests for a model it is on the device or it is not. Keeping a part of it for that part of its reload
    seconds, within the bytes that the model executing at each request leaves, is the flow relaxation of Berger, Beckmann
    and Harchol-Balter, Practical Bounds on Optimal Caching with Variable Object Sizes (FOO), SIGMETRICS 2018, solved as a
    linear program. For equal sizes and costs it is Belady's optimum.
    """
    models = np.array([model for _, model in workload.trace])
    nbytes = np.array(workload.sizes, float) / workload.capacity
    seconds = np.array([workload.reload_seconds(model) for model in range(len(nbytes))])
    # A model may be kept from one request for it to the next: `kept` is by the later one. It takes room from the request
    # after the earlier one up to the one before the later one.
    last: dict[int, int] = {}
    starts, ends = [], []
    for at, model in enumerate(models):
        if model in last:
            starts.append(last[model] + 1)
            ends.append(at)
        last[model] = at
    kept = models[ends]
    # Unknown are the part of each that is kept, and the bytes taken at each request: those of the request before, and of
    # what begins to be kept, without those of what ends.
    each, requests = np.arange(len(ends)), len(models)
    changes = sparse.coo_array(
        (np.concatenate([-nbytes[kept], nbytes[kept]]), (np.concatenate([starts, ends]), np.concatenate([each, each]))),
        shape=(requests, len(ends)),
    )
    taken = sparse.diags_array([np.ones(requests), -np.ones(requests - 1)], offsets=[0, -1])
    highest = np.concatenate([np.ones(len(ends)), 1.0 - nbytes[models]])
    solved = linprog(
        np.concatenate([-seconds[kept], np.zeros(requests)]),
        A_eq=sparse.hstack([changes, taken], format="csr"),
        b_eq=np.zeros(requests),
        bounds=np.column_stack([np.zeros(len(highest)), highest]),
    )
    if not solved.success:
        raise RuntimeError(f"the bound was not found: {solved.message}")
    return float(seconds[models].sum() + solved.fun)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Reload seconds by trace: the mean over the seeds, and of each seed."""
    traces = {}
    for name, shape in SHAPES.items():
        report.progress(f"{name}, {options.requests} requests, {len(SEEDS)} seeds")
        rows = []
        for seed in SEEDS:
            sizes = catalogue(seed, MODELS)
            workload = Workload(
                shape(seed, models=MODELS, requests=options.requests), sizes, sum(sizes) // DEVICE_SHARE
            )
            rows.append(
                {
                    "ballast": simulate(workload, Ballast(workload)),
                    "lru": simulate(workload, LeastRecentlyUsed(workload)),
                    "bound": lower_bound(workload),
                }
            )
        traces[name] = {arm: fmean(row[arm] for row in rows) for arm in rows[0]} | {"seeds": rows}
    return {"traces": traces}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests", type=report.above_zero(int), default=REQUESTS, help=f"of each trace (default {REQUESTS})"
    )


if __name__ == "__main__":
    report.main("policy", measure, description=__doc__, arguments=_arguments)
