# SPDX-License-Identifier: Apache-2.0
"""Thousands of loads of a catalogue three times the device: no allocation fails, and device memory does not grow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import get_args

from ballast_contract.config import Device
from ballast_worker.control.models import Built
from ballast_worker.device.probe import describe, driver_used
from benchmarks.gpu.setting import MIB, Setting
from benchmarks.gpu.worker import Worker

WARM_UP = 100
"""Calls before the driver's figure is read for the first time: kernels are loaded when they first run."""


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None], *, allocator: str) -> None:
    """Emit churn_ALLOCATOR: every call is for a model chosen at random, so that most of them need a load."""
    if allocator not in get_args(Device.model_fields["allocator"].annotation):
        emit(**{f"churn_{allocator}": "this worker has no such allocator"})
        return
    scale = setting.scale
    models = {f"{size.name}-{copy}": size.name for size in scale.churn for copy in range(scale.copies)}
    catalogue = sum(built[bundle].bundle.layout.nbytes for bundle in models.values())
    host = sum(built[size.name].bundle.layout.nbytes for size in scale.churn)
    facts = describe(setting.backend, 0)
    worker = Worker(
        setting,
        models,
        built,
        arena=catalogue // 3,
        host=host + len(scale.churn) * 4 * MIB + 64 * MIB,
        allocator=allocator,
    )
    names, chosen = sorted(models), random.Random(7)
    refused: list[str] = []
    calls = 0
    before = None
    began = time.monotonic()
    while True:
        answer = worker.call(chosen.choice(names))
        refused += [answer.refusal.reason.value] if answer.refusal is not None else []
        calls += 1
        if calls == WARM_UP:
            before = driver_used(facts)
        if calls % WARM_UP == 0:
            snapshot = worker.parts.residency.snapshot()
            if snapshot.loads >= scale.churn_loads:
                break
    seconds = time.monotonic() - began
    after = driver_used(facts)
    beyond = worker.plan_against_driver()
    emit(
        **{
            f"churn_{allocator}": {
                "loads": snapshot.loads,
                "calls": calls,
                "seconds": seconds,
                "failed_allocations": snapshot.admission_failures,
                "refused_calls": len(refused),
                "refused_for": sorted(set(refused)),
                "growth_bytes": None if before is None or after is None else after - before,
                "plan_against_driver_mebibytes": None if beyond is None else beyond / MIB,
                "evictions": snapshot.evictions,
                "moved_bytes": snapshot.moved_bytes,
                "fallback_compactions": snapshot.fallback_compactions,
                "catalogue_bytes": catalogue,
                "device_bytes": worker.plan.arena,
            }
        }
    )
    worker.close()


def arena(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """The churn with the arena."""
    measure(setting, built, emit, allocator="arena")


def bfc(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """The churn with XLA's allocator."""
    measure(setting, built, emit, allocator="bfc")
