# SPDX-License-Identifier: Apache-2.0
"""Loads from host copies: against the link, idle and beside a model that executes; small ones; the first call after one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from ballast_worker.control.models import Built
from ballast_worker.residency.protocol import CompactionMode
from benchmarks.gpu import link
from benchmarks.gpu.prepare import COMPUTE
from benchmarks.gpu.setting import MIB, Setting
from benchmarks.gpu.worker import Worker
from benchmarks.summary import quantile


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit load_ratio_of_limit and what goes with it, small_load_milliseconds, plan_against_driver_mebibytes."""
    scale = setting.scale
    mix = [size.name for size in scale.mix]
    # Two names for the big bundle and room for one: each load makes the other go. They share one host copy.
    models = {"big-a": "big", "big-b": "big", "small": "small", COMPUTE: COMPUTE, **{name: name for name in mix}}
    big = built["big"].bundle.layout
    host = sum(built[name].bundle.layout.nbytes for name in ("big", "small", COMPUTE, *mix))
    worker = Worker(
        setting, models, built, arena=big.nbytes, host=host + len(models) * 64 * MIB, pinned=frozenset({COMPUTE})
    )
    cold = worker.load("big-a")
    emit(cold_load={"bytes": big.nbytes, "tensors": len(big.tensors), "seconds": cold})

    limit = link.bytes_per_second(setting)
    names = ["big-b", "big-a"] * scale.repeats
    idle = [worker.load(name) for name in names]
    with worker.executing(COMPUTE) as answers:
        before = len(answers)
        beside = [worker.load(name) for name in names]
        executed = len(answers) - before
    limit = max(limit, link.bytes_per_second(setting))
    emit(
        load_ratio_of_limit=big.nbytes / median(beside) / limit,
        load_ratio_of_limit_idle=big.nbytes / median(idle) / limit,
        load={
            "bytes": big.nbytes,
            "tensors": len(big.tensors),
            "limit_gigabytes_per_second": limit / 1e9,
            "idle_seconds": idle,
            "beside_executions_seconds": beside,
            "executions_meanwhile_per_second": executed / sum(beside),
        },
    )

    firsts, steady = _first_calls(worker, "big-b", "big-a", scale.repeats)
    emit(first_call_after_load={"tensors": len(big.tensors), "milliseconds": firsts, "then_p50": steady})

    emit(small_load_milliseconds=_small(worker, scale.small_loads))
    emit(mixed_loads=_mixed(worker, mix, built, limit, scale.repeats))
    beyond, made = worker.plan_against_driver(), worker.made_against_driver()
    emit(
        plan_against_driver_mebibytes=None if beyond is None else beyond / MIB,
        plan_as_made_against_driver_mebibytes=None if made is None else made / MIB,
    )
    worker.close()


def _first_calls(worker: Worker, one: str, other: str, repeats: int) -> tuple[list[float], float]:
    """Milliseconds of the first call after a load, and of the calls that follow."""
    firsts, steady = [], []
    for name in [one, other] * repeats:
        worker.load(name)
        firsts.append(1e3 * worker.call(name).seconds)
        steady += [1e3 * worker.call(name).seconds for _ in range(20)]
        worker.compact(CompactionMode.FREE)
    return firsts, median(steady)


def _small(worker: Worker, loads: int) -> dict[str, float]:
    worker.load("small")
    milliseconds = []
    for _ in range(loads):
        worker.compact(CompactionMode.FREE)
        milliseconds.append(1e3 * worker.load("small"))
    return {"p50": median(milliseconds), "p99": quantile(milliseconds, 0.99)}


def _mixed(
    worker: Worker, names: list[str], built: Mapping[str, Built], limit: float, repeats: int
) -> dict[str, dict[str, float]]:
    """By model: bytes, tensors, median milliseconds of a load, and its ratio of the link."""
    for name in names:
        worker.load(name)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        worker.compact(CompactionMode.FREE)
        for name in names:
            seconds[name].append(worker.load(name))
    report = {}
    for name in names:
        layout, middle = built[name].bundle.layout, median(seconds[name])
        report[name] = {
            "bytes": layout.nbytes,
            "tensors": len(layout.tensors),
            "milliseconds": 1e3 * middle,
            "ratio_of_limit": layout.nbytes / middle / limit,
        }
    return report
