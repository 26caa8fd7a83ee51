# SPDX-License-Identifier: Apache-2.0
"""What a request costs on its way through a worker: requests a second, latency and processor time, by protocol.

A real worker with three small models on the CPU has one core, and a closed loop over loopback, with connections that are
kept, has another. The limit is measured in the same run on the worker's core: the call alone, and the least server around it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from ballast_contract.config import Batching
from benchmarks import report
from benchmarks.requests import cores
from benchmarks.requests.loop import Asker
from benchmarks.requests.models import WIDTH
from benchmarks.requests.server import (
    ENVIRONMENT,
    FLOOR_READY,
    WORKER_READY,
    Server,
    serving,
    worker_config,
    write_config,
)
from benchmarks.requests.wires import WIRES

REPETITIONS: Final = 3
FLOOR_WIRE: Final = "http_binary"
FLOOR_WORKERS: Final = 8

Point = dict[str, float]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    chosen = cores.choose()
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as name, cores.bound_to(chosen.generator):
        folder = Path(name)
        report.progress("packing")
        pack = [sys.executable, "-m", "benchmarks.requests.models", name]
        subprocess.run(pack, check=True, env=os.environ | ENVIRONMENT)
        write_config(worker_config(folder), folder / "worker.yaml")
        report.progress("the call alone, then a worker")
        with (
            serving(
                "benchmarks.requests.floor",
                ["--seconds", str(options.seconds)],
                ready=FLOOR_READY,
                core=chosen.server,
            ) as floor,
            serving(
                "ballast_worker.control.main",
                ["--config", str(folder / "worker.yaml")],
                ready=WORKER_READY,
                core=chosen.server,
            ) as worker,
        ):
            figures = uvloop.run(_points(floor, worker, options.seconds, options.workers))
    return figures | {"batching": Batching().model_dump() | {"rows_of_an_execution": 1}, "cores": asdict(chosen)}


async def _points(floor: Server, worker: Server, seconds: float, workers: Sequence[int]) -> dict[str, Any]:
    """Every point in turn, and all of them again; the median counts."""
    askers = {name: Asker(wire) for name, wire in WIRES.items()}
    plan = [("floor", FLOOR_WIRE, FLOOR_WORKERS), *(("worker", wire, count) for wire in WIRES for count in workers)]
    found: defaultdict[tuple[str, str, int], list[Point]] = defaultdict(list)
    errors = 0
    for number in range(REPETITIONS):
        for point in plan:
            whom, wire, count = point
            server = floor if whom == "floor" else worker
            figures, failed = await askers[wire].point(server, count, warm_up=seconds / 4, seconds=seconds)
            found[point].append(figures)
            errors += failed
            said = ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
            report.progress(f"{number + 1} of {REPETITIONS}: {whom}, {wire}, {count} workers: {said}")
    least = _medians(found["floor", FLOOR_WIRE, FLOOR_WORKERS])
    return {
        "protocols": {
            wire: {str(count): _medians(found["worker", wire, count]) for count in workers} for wire in WIRES
        },
        "limit": {
            "call_microseconds_p50": round(floor.said["call_microseconds_p50"], 1),
            "calls_per_second": round(floor.said["calls_per_second"], 1),
            "floor_requests_per_second": least["requests_per_second"],
            "floor": {FLOOR_WIRE: {str(FLOOR_WORKERS): least}},
        },
        "input_bytes": 4 * WIDTH,
        "seconds": seconds,
        "errors": errors,
    } | ({"failures": {"answers": f"{errors} requests failed, or had a wrong answer"}} if errors else {})


def _medians(points: Sequence[Point]) -> Point:
    return {key: round(median(point[key] for point in points), 3) for key in points[0]}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=report.above_zero(float), default=4.0, help="of each point, three times (default 4)"
    )
    parser.add_argument(
        "--workers",
        type=report.above_zero(int),
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="of the closed loop (default 1 8 32)",
    )


if __name__ == "__main__":
    report.main("requests", measure, description=__doc__, arguments=_arguments)
