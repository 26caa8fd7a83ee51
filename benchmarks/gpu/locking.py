# SPDX-License-Identifier: Apache-2.0
"""Page-locking: how long executions stand still when the host pool grows after Ready, and how long a start takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from ballast_worker.control.models import Built
from ballast_worker.control.pagelock import cuda_locker
from ballast_worker.host.pool import HostPool
from benchmarks.gpu.prepare import COMPUTE
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.worker import Answered, Worker
from benchmarks.summary import quantile


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit longest_standstill_milliseconds: between the ends of two executions, quiet and while memory is locked. And
    pool_start: what a start takes that allocates, maps and locks a whole pool, and one that finds it.
    """
    slab = built["slab"].bundle.layout
    own = replace(setting, pool=setting.pool / "growing")
    worker = Worker(
        own, {"slab": "slab", COMPUTE: COMPUTE}, built, arena=slab.nbytes, host=None, pinned=frozenset({COMPUTE})
    )
    with worker.executing(COMPUTE) as answers:
        time.sleep(setting.scale.seconds)
    quiet = pauses(answers)
    with worker.executing(COMPUTE) as answers:
        seconds = worker.load("slab")
    locking = pauses(answers)
    emit(
        longest_standstill_milliseconds={
            "quiet": quiet,
            "while_locking": locking,
            "locked_bytes": slab.nbytes,
            "load_seconds": seconds,
        }
    )
    worker.close()
    emit(pool_start=_pool_start(setting))


def _pool_start(setting: Setting) -> dict[str, float]:
    path, locker = setting.pool / "start", cuda_locker(0) if setting.backend == "cuda" else None

    def seconds() -> float:
        began = time.perf_counter()
        pool = HostPool(directory=path, budget=setting.scale.pool_bytes, locker=locker)
        taken = time.perf_counter() - began
        pool.close()
        return taken

    figures = {"bytes": setting.scale.pool_bytes, "seconds": seconds(), "again_seconds": seconds()}
    shutil.rmtree(path)
    return figures


def pauses(answers: Sequence[Answered]) -> dict[str, float]:
    """Milliseconds between the ends of neighbouring executions."""
    between = [1e3 * (after.answered - before.answered) for before, after in pairwise(answers)] or [0.0]
    return {"longest": max(between), "p99": quantile(between, 0.99), "p50": median(between), "executions": len(answers)}
