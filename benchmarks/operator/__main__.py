# SPDX-License-Identifier: Apache-2.0
"""Places models on simulated workers with the real operator, and measures what it takes.

Figures: `placed_seconds` from the first creation until every model is Placed, `ready_seconds` until every model is
Ready; `bare_writes_seconds`, what the same creations and the operator's own writes take a bare client in the same run;
`status_lag_seconds` from a pinned model's change of tier on a worker until a watch of the API shows it;
`idle_cpu_percent` of one core; `restart_seconds` until a new process has heard from every worker and looked at every
model, and `restart_writes`, what it wrote meanwhile, which should be nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from ballast_operator.cluster.resources import BUDGETS
from benchmarks import processor
from benchmarks.operator import bare, objects, pods
from benchmarks.operator.certificate import worker_certificate
from benchmarks.operator.ground import Ground, enter_network, ground
from benchmarks.operator.subject import Scrape, Subject
from benchmarks.operator.watching import ModelWatch, watch_models
from benchmarks.operator.workers import Workers
from benchmarks.report import above_zero, main, progress

NAMESPACE: Final = "bench"
BARE: Final = "bare"

_PATIENCE_SECONDS: Final = 300.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    """How large the run is."""
    parser.add_argument(
        "--models", type=above_zero(int), default=5000, help="InferenceModels, created in one go (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=above_zero(int), default=200, help="workers of all pools together (%(default)s)"
    )
    parser.add_argument("--pools", type=above_zero(int), default=1, help="WeightBudgets that share both (%(default)s)")
    parser.add_argument("--idle-seconds", type=float, default=300.0, help="how long it idles (%(default)s)")
    parser.add_argument("--moves", type=above_zero(int), default=200, help="changes of tier for the lag (%(default)s)")
    parser.add_argument(
        "--quiet-seconds",
        type=float,
        default=20.0,
        help="how long nothing is written before all counts as done; figures may wait for 15 s (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the changes (%(default)s)")
    parser.add_argument("--log", type=Path, help="keep the operator's log in this file")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything once."""
    return asyncio.run(_measure(options))


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        log = options.log or Path(folder) / "operator.log"
        async with ground() as here:
            await here.namespace(NAMESPACE)
            await here.namespace(BARE)
            subject = await Subject.start(here.kubeconfig, NAMESPACE, log)
            try:
                return await _with_operator(options, here, subject, log)
            except Exception:
                progress(f"the operator's last words: {log.read_text()[-3000:]}")
                raise
            finally:
                await subject.stop()


async def _with_operator(options: argparse.Namespace, here: Ground, subject: Subject, log: Path) -> dict[str, Any]:
    workers = await _pools_up(options, here, subject)
    try:
        async with watch_models(here.kubeconfig, NAMESPACE) as watch:
            figures = await _place(options, here, subject, workers, watch)
            figures |= await _lag(options, workers, watch)
            figures |= await _idle(options, subject)
            await subject.stop()
            figures |= await _restart(options, here, watch, log)
    finally:
        await workers.stop()
    progress("the same writes by a bare client")
    seconds = await bare.repeat(here, BARE, NAMESPACE, Counter(figures["writes"]))
    figures["bare_writes_seconds"] = round(seconds, 2)
    figures["ratio"] = round(figures["ready_seconds"] / seconds, 2)
    return figures


async def _pools_up(options: argparse.Namespace, here: Ground, subject: Subject) -> Workers:
    for pool in range(options.pools):
        replicas = options.workers // options.pools + (pool < options.workers % options.pools)
        await here.client.create(BUDGETS, objects.budget(pool, replicas, namespace=NAMESPACE))
    progress(f"{options.workers} worker pods")
    addresses: dict[str, str] = {}
    async for running in pods.play(here.client, NAMESPACE, count=options.workers):
        addresses = running
        await _scrape(subject)  # it raises when the operator has ended
    workers = await Workers.start(addresses, await worker_certificate(here.client, NAMESPACE))
    await _until(subject, lambda now: now.value("ballast_operator_workers", state="ready") == options.workers)
    return workers


async def _place(
    options: argparse.Namespace, here: Ground, subject: Subject, workers: Workers, watch: ModelWatch
) -> dict[str, Any]:
    await _quiet(options, subject)
    before, load = await _scrape(subject), os.getloadavg()[0]
    own = {"operator": subject.pid, "simulated workers": workers.pid, "benchmark": os.getpid()}
    meter = processor.Meter(here.processes() | own)
    progress(f"{options.models} models are created")
    started = time.monotonic()
    bodies = [objects.model(n, options.pools, namespace=NAMESPACE) for n in range(options.models)]
    creating = asyncio.create_task(bare.create(here.kubeconfig, bodies))
    placed = await subject.outlive(
        watch.until(lambda: watch.holding["Placed"] == options.models, seconds=_PATIENCE_SECONDS)
    )
    progress(f"all are placed after {placed - started:.1f} s")
    ready = await subject.outlive(
        watch.until(lambda: watch.holding["Ready"] == options.models, seconds=_PATIENCE_SECONDS)
    )
    progress(f"all are ready after {ready - started:.1f} s")
    spent, created = meter.spent(), await creating
    writes = (await _quiet(options, subject)).writes() - before.writes()
    events = writes["create events"]
    return {
        "models": options.models,
        "workers": options.workers,
        "pools": options.pools,
        "load_average_before": round(load, 1),
        "created_seconds": round(created, 2),
        "placed_seconds": round(placed - started, 2),
        "ready_seconds": round(ready - started, 2),
        "placing_cpu_seconds": {name: round(used, 2) for name, used in spent.items()},
        "writes": dict(sorted(writes.items())),
        "writes_per_model": round((writes.total() - events) / options.models, 2),
        "events_per_model": round(events / options.models, 2),
    }


async def _lag(options: argparse.Namespace, workers: Workers, watch: ModelWatch) -> dict[str, Any]:
    progress(f"{options.moves} changes of tier")
    rng = random.Random(options.seed)
    pinned = await workers.pinned()
    lags: list[float] = []
    async with asyncio.TaskGroup() as waiting:
        for worker, model in (rng.choice(pinned) for _ in range(options.moves)):
            tier = "host" if watch.statuses[model].get("residency") == "device" else "device"
            moved = await workers.move(worker, model, tier)
            waiting.create_task(_seen(watch, model, tier, moved, lags))
            await asyncio.sleep(rng.expovariate(20.0))
    lags.sort()
    return {
        "status_lag_seconds": {
            name: round(lags[min(len(lags) - 1, int(len(lags) * part))], 3)
            for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        }
        | {"mean": round(statistics.fmean(lags), 3)},
    }


async def _seen(watch: ModelWatch, model: str, tier: str, moved: float, lags: list[float]) -> None:
    seen = await watch.until(lambda: watch.statuses[model].get("residency") == tier, seconds=60)
    lags.append(seen - moved)


async def _idle(options: argparse.Namespace, subject: Subject) -> dict[str, Any]:
    await _quiet(options, subject)
    progress(f"idle for {options.idle_seconds:.0f} s")
    before, started, cpu = await _scrape(subject), time.monotonic(), processor.seconds(subject.pid)
    await asyncio.sleep(options.idle_seconds)
    spent, passed = processor.seconds(subject.pid) - cpu, time.monotonic() - started
    writes = (await _scrape(subject)).writes() - before.writes()
    return {
        "idle_seconds": round(passed, 1),
        "idle_cpu_percent": round(100 * spent / passed, 2),
        "idle_writes": writes.total(),
        "rss_mebibytes": round(subject.memory_mebibytes(), 1),
        "rss_highest_mebibytes": round(subject.memory_mebibytes("VmHWM"), 1),
    }


async def _restart(options: argparse.Namespace, here: Ground, watch: ModelWatch, log: Path) -> dict[str, Any]:
    progress("restart")
    events = watch.events
    subject = await Subject.start(here.kubeconfig, NAMESPACE, log)
    try:
        await _until(
            subject,
            lambda now: (
                now.value("ballast_operator_workers", state="ready") == options.workers
                and now.value("ballast_operator_model_ready") == options.models
                and now.value("ballast_operator_queue_depth") == 0
            ),
        )
        seconds = time.monotonic() - subject.started
        writes = (await _quiet(options, subject)).writes()
    finally:
        await subject.stop()
    return {
        "restart_seconds": round(seconds, 2),
        "restart_writes": writes.total(),
        "restart_model_events": watch.events - events,
        "restart_written": dict(writes),
    }


async def _quiet(options: argparse.Namespace, subject: Subject) -> Scrape:
    """Wait until nothing has been written for a while; returns the metrics then."""
    last, since = await _scrape(subject), time.monotonic()
    while time.monotonic() - since < options.quiet_seconds:
        await asyncio.sleep(1.0)
        now = await _scrape(subject)
        if now.writes() != last.writes():
            since = time.monotonic()
        last = now
    return last


async def _scrape(subject: Subject) -> Scrape:
    while (found := await subject.scrape()) is None:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.2)
    return found


async def _until(subject: Subject, so: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not so(await _scrape(subject)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator did not get there within {_PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    enter_network()
    main("operator", measure, description=__doc__, arguments=_arguments)
