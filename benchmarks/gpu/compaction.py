# SPDX-License-Identifier: Apache-2.0
"""Compaction of a full arena by moving, against freeing and reloading the same models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from ballast_worker.control.models import Built
from ballast_worker.residency.protocol import CompactionMode
from benchmarks.gpu.setting import MIB, Setting
from benchmarks.gpu.worker import BenchmarkError, Worker


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit compaction_speedup (until the bytes have moved) and compaction_all_callable_speedup (until every model could
    be executed), each the bytes per second of moving over those of reloading.
    """
    scale, layout = setting.scale, built["slab"].bundle.layout
    names = [f"slab-{index:02}" for index in range(scale.slabs)]
    worker = Worker(
        setting,
        dict.fromkeys(names, "slab"),
        built,
        arena=layout.nbytes * scale.slabs,
        host=layout.nbytes + 64 * MIB,
    )
    for name in names:
        worker.load(name)
    moved, callable_, reloaded, firsts, seconds = [], [], [], [], []
    for turn in range(scale.repeats):
        # Every second model goes; the others lie between holes.
        gone = names[turn % 2 :: 2]
        stay = [name for name in names if name not in gone]
        for name in gone:
            worker.remove(name)
        result = worker.compact(CompactionMode.MOVE)
        if result.fragmentation_after or result.moved_bytes < layout.nbytes:
            raise BenchmarkError(f"the compaction has not done what it was measured for: {result}")
        leases = _lease_all(worker, stay)
        moved.append(result.moved_bytes / result.seconds_until_moved)
        callable_.append(result.moved_bytes / (result.seconds_until_callable + leases))
        seconds.append(result.seconds_until_moved)
        firsts += [1e3 * worker.call(name).seconds for name in stay]
        steady = [1e3 * worker.call(name).seconds for name in stay for _ in range(5)]
        result = worker.compact(CompactionMode.FREE, stay)
        if result.not_reloaded:
            raise BenchmarkError(f"not reloaded: {result.not_reloaded}")
        reloaded.append(len(stay) * layout.nbytes / result.seconds_until_callable)
        for name in gone:
            worker.add(name)
            worker.load(name)
    emit(
        compaction_speedup=median(moved) / median(reloaded),
        compaction_all_callable_speedup=median(callable_) / median(reloaded),
        compaction={
            "arena_bytes": worker.plan.arena,
            "models": len(names),
            "tensors_per_model": len(layout.tensors),
            "moving_seconds": seconds,
            "moving_gigabytes_per_second": median(moved) / 1e9,
            "until_callable_gigabytes_per_second": median(callable_) / 1e9,
            "reloading_gigabytes_per_second": median(reloaded) / 1e9,
        },
        first_call_at_a_new_address_milliseconds={
            "first_p50": median(firsts),
            "first_longest": max(firsts),
            "then_p50": median(steady),
        },
    )
    worker.close()


def _lease_all(worker: Worker, names: Sequence[str]) -> float:
    """Seconds until every one of these models has been leased once, which builds its views anew."""

    def lease() -> float:
        began = time.perf_counter()
        for name in names:
            worker.parts.residency.want(name)
            worker.parts.residency.lease(name).release()
        return time.perf_counter() - began

    return worker.on_device(lease)
