# SPDX-License-Identifier: Apache-2.0
"""Packing against round robin, least loaded and the plain longest-processing-time rule, on traces of four shapes.

Last line: JSON. traces.SHAPE.POLICY has max_load (device seconds per second of the busiest worker, mean over minutes), spread
(standard deviation over mean of the workers' loads), bytes_moved by repacks, reload_seconds that calls waited for, and
moves and refused beside them. over_plain_lpt.SHAPE has max_load and reload_seconds over those of the plain rule, by seed.
pack_seconds is the time to pack 10,000 models on 500 workers that have none, and repack_seconds that of the repack after all
demand has changed; swapping_pack_seconds and swapping_repack_seconds are those of 970 models on 24 workers, about the
largest pool in which reloads are estimated. All are processor time of plain Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ballast_operator.placement.model import ModelDemand, WorkerCapacity
from ballast_operator.placement.packing import pack
from ballast_operator.placement.simulation import Arrival, Outcome, Rules, Simulation, operators_rule
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


def _references(seed: int, requests: int) -> dict[str, traces.Trace]:
    """The trace of each shape."""
    steady = traces.zipf(seed, models=_MODELS, requests=requests, per_second=_PER_SECOND)
    half = steady[-1].seconds / 2
    chosen = random.Random(f"giant {seed}")
    return {
        "steady_zipf": steady,
        "flipped_zipf": [r if r.seconds < half else r._replace(model=_MODELS - 1 - r.model) for r in steady],
        "bursts": traces.bursty_groups(seed, models=_MODELS, requests=requests, per_second=_PER_SECOND),
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


def _large_pool(seed: int, count: int, workers: int) -> tuple[list[ModelDemand], list[WorkerCapacity]]:
    """Models of which each fiftieth is pinned and each fortieth has two copies."""
    chosen = random.Random(f"large pool {seed}")
    shares = [1 / (rank + 1) ** 0.8 for rank in range(count)]
    chosen.shuffle(shares)
    scale = workers * _BUSY / sum(shares)
    sizes = traces.catalogue(seed, count, largest=8 << 30)
    capacity = int(sum(sizes) / workers / _SWAPPED)
    models = [
        ModelDemand(
            f"m{n:05}",
            size,
            utilization=min(0.9, share * scale),
            rate=_PER_SECOND * share * scale,
            pinned=n % 50 == 0,
            replicas=2 if n % 40 == 0 else 1,
        )
        for n, (size, share) in enumerate(zip(sizes, shares, strict=True))
    ]
    return models, [WorkerCapacity(f"w{n:03}", f"n{n // 8}", capacity) for n in range(workers)]


def outcomes(
    seed: int, *, requests: int = _REQUESTS, policies: Sequence[str] = tuple(_POLICIES)
) -> dict[str, dict[str, Outcome]]:
    """What came of each trace under each policy: shape, then policy."""
    models, workers, costs = _pool(seed)
    found: dict[str, dict[str, Outcome]] = {}
    for shape, trace in _references(seed, requests).items():
        for name in policies:
            report.progress(f"seed {seed}, {shape}: {name}")
            outcome = Simulation(models, workers, Rules(_LINK), _POLICIES[name]).run(_arrivals(trace, costs))
            found.setdefault(shape, {})[name] = outcome
    return found


def _figures(outcome: Outcome) -> dict[str, Any]:
    return {
        "max_load": round(outcome.max_load, 4),
        "spread": round(outcome.spread, 4),
        "bytes_moved": outcome.bytes_moved,
        "reload_seconds": round(outcome.reload_seconds, 2),
        "moves": outcome.moves,
        "refused": sum(outcome.refused.values()),
    }


def _over_plain_lpt(policies: Sequence[Mapping[str, Outcome]]) -> dict[str, list[float]]:
    pairs = [(found["ballast"], found["plain_lpt"]) for found in policies]
    return {
        "max_load": [round(ours.max_load / plain.max_load, 3) for ours, plain in pairs],
        "reload_seconds": [round(ours.reload_seconds / plain.reload_seconds, 3) for ours, plain in pairs],
    }


def _pack_seconds(seed: int, count: int, workers: int) -> tuple[float, float]:
    """Processor time of a first pack, and of the repack after all demand has changed."""
    report.progress(f"{count} models on {workers} workers")
    models, pool = _large_pool(seed, count, workers)
    begun = time.process_time()
    first = pack(models, pool, {})
    packed = time.process_time()
    other = [
        dataclasses.replace(model, utilization=turned.utilization, rate=turned.rate)
        for model, turned in zip(models, reversed(models), strict=True)
    ]
    again = time.process_time()
    pack(other, pool, first.assignments)
    return round(packed - begun, 3), round(time.process_time() - again, 3)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    runs = [outcomes(seed) for seed in range(options.seed, options.seed + options.seeds)]
    large, swapping = _pack_seconds(options.seed, 10_000, 500), _pack_seconds(options.seed, 970, 24)
    return {
        "traces": {
            shape: {name: _figures(outcome) for name, outcome in policies.items()}
            for shape, policies in runs[0].items()
        },
        "over_plain_lpt": {shape: _over_plain_lpt([run[shape] for run in runs]) for shape in runs[0]},
        "pack_seconds": large[0],
        "repack_seconds": large[1],
        "swapping_pack_seconds": swapping[0],
        "swapping_repack_seconds": swapping[1],
    }


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of traces and sizes (%(default)s)")
    parser.add_argument(
        "--seeds", type=report.above_zero(int), default=5, help="how many, from that one on (%(default)s)"
    )


if __name__ == "__main__":
    report.main("placement", _measure, description=__doc__, arguments=_arguments)
