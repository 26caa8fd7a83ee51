# SPDX-License-Identifier: Apache-2.0
"""Packing against round robin, least loaded and the plain longest-processing-time rule, on traces of four shapes.

Last line: JSON. traces.SHAPE.POLICY has max_load (device seconds per second of the busiest worker, mean over minutes), spread
(standard deviation over mean of the workers' loads), bytes_moved by repacks, reload_seconds that calls waited for, and
moves and refused beside them. pack_seconds is the time to pack 10,000 models on 500 workers that have none, and
repack_seconds that of the repack after all demand has changed; both are processor time of plain Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ballast_operator.placement.model import ModelDemand, WorkerCapacity
from ballast_operator.placement.packing import pack
from ballast_operator.placement.simulation import Arrival, Rules, Simulation, operators_rule
from benchmarks import placement_policies, report, traces

_MODELS: Final = 60
_WORKERS: Final = 6
_PER_SECOND: Final = 100.0
_REQUESTS: Final = 90_000
_BUSY: Final = 0.6
"""Share of the pool's device time that the trace asks for."""

_PINNED: Final = 3
_SWAPPED: Final = 1.5
"""Bytes of all models over the capacity of all workers."""

_LINK: Final = 25 << 30
_GIANT: Final = 0.22
"""Share of the requests that go to one model: more than one worker's even share."""

_POLICIES: Final = {
    "ballast": operators_rule(),
    "plain_lpt": placement_policies.plain_lpt(),
    "least_loaded": placement_policies.least_loaded,
    "round_robin": placement_policies.round_robin,
}


def _references(seed: int) -> dict[str, traces.Trace]:
    """The trace of each shape."""
    steady = traces.zipf(seed, models=_MODELS, requests=_REQUESTS, per_second=_PER_SECOND)
    half = steady[-1].seconds / 2
    chosen = random.Random(f"giant {seed}")
    return {
        "steady_zipf": steady,
        "flipped_zipf": [r if r.seconds < half else r._replace(model=_MODELS - 1 - r.model) for r in steady],
        "bursts": traces.bursty_groups(seed, models=_MODELS, requests=_REQUESTS, per_second=_PER_SECOND),
        "giant_model": [r._replace(model=0) if chosen.random() < _GIANT else r for r in steady],
    }


def _pool(seed: int) -> tuple[list[ModelDemand], list[WorkerCapacity], dict[str, float]]:
    """Models with sizes over two orders of magnitude, workers that do not hold them all, relative costs of a request."""
    sizes = traces.catalogue(seed, _MODELS, largest=8 << 30)
    chosen = random.Random(f"pool {seed}")
    capacity = int(sum(sizes) / _WORKERS / _SWAPPED)
    pinned = set(chosen.sample(range(_MODELS), _PINNED))
    models = [ModelDemand(f"m{n:02}", size, pinned=n in pinned) for n, size in enumerate(sizes)]
    costs = {model.name: chosen.uniform(0.5, 1.5) for model in models}
    return models, [WorkerCapacity(f"w{n}", capacity_bytes=capacity) for n in range(_WORKERS)], costs


def _arrivals(trace: traces.Trace, costs: Mapping[str, float]) -> Iterable[Arrival]:
    names = [f"m{r.model:02}" for r in trace]
    cost = _BUSY * _WORKERS * trace[-1].seconds / sum(costs[name] for name in names)
    for reference, name in zip(trace, names, strict=True):
        yield Arrival(reference.seconds, name, cost * costs[name])


def _large_pool(seed: int) -> tuple[list[ModelDemand], list[WorkerCapacity]]:
    chosen = random.Random(f"large pool {seed}")
    count, workers = 10_000, 500
    shares = [1 / (rank + 1) ** 0.8 for rank in range(count)]
    chosen.shuffle(shares)
    scale = workers * _BUSY / sum(shares)
    sizes = traces.catalogue(seed, count, largest=8 << 30)
    capacity = int(sum(sizes) / workers / _SWAPPED)
    models = [
        ModelDemand(
            f"m{n:05}", size, utilization=min(0.9, share * scale), pinned=n % 50 == 0, replicas=2 if n % 40 == 0 else 1
        )
        for n, (size, share) in enumerate(zip(sizes, shares, strict=True))
    ]
    return models, [WorkerCapacity(f"w{n:03}", f"n{n // 8}", capacity) for n in range(workers)]


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    models, workers, costs = _pool(options.seed)
    found: dict[str, dict[str, Any]] = {}
    for shape, trace in _references(options.seed).items():
        for name, policy in _POLICIES.items():
            report.progress(f"{shape}: {name}")
            outcome = Simulation(models, workers, Rules(_LINK), policy).run(_arrivals(trace, costs))
            found.setdefault(shape, {})[name] = {
                "max_load": round(outcome.max_load, 4),
                "spread": round(outcome.spread, 4),
                "bytes_moved": outcome.bytes_moved,
                "reload_seconds": round(outcome.reload_seconds, 2),
                "moves": outcome.moves,
                "refused": sum(outcome.refused.values()),
            }
    report.progress("10,000 models on 500 workers")
    many, pool = _large_pool(options.seed)
    begun = time.process_time()
    first = pack(many, pool, {})
    packed = time.process_time()
    other = [
        dataclasses.replace(model, utilization=utilization)
        for model, utilization in zip(many, reversed([model.utilization for model in many]), strict=True)
    ]
    again = time.process_time()
    pack(other, pool, first.assignments)
    return {
        "traces": found,
        "pack_seconds": round(packed - begun, 3),
        "repack_seconds": round(time.process_time() - again, 3),
    }


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of traces and sizes (%(default)s)")


if __name__ == "__main__":
    report.main("placement", _measure, description=__doc__, arguments=_arguments)
