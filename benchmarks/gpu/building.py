# SPDX-License-Identifier: Apache-2.0
"""What a model that is built beside a serving worker costs the executions of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ballast_worker.control.models import Built
from benchmarks.gpu import prepare
from benchmarks.gpu.locking import pauses
from benchmarks.gpu.prepare import COMPUTE
from benchmarks.gpu.setting import MIB, Setting
from benchmarks.gpu.worker import Worker

SLACK_BYTES: Final = 1600 * MIB
"""What the builder may take: the slack of a budget of 16 GiB, from which models are built that are added to a worker."""


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit executions_beside_a_builder: milliseconds between the ends of executions, quiet and while a model is built."""
    worker = Worker(setting, {COMPUTE: COMPUTE}, built, arena=0, host=64 * MIB, pinned=frozenset({COMPUTE}))
    with worker.executing(COMPUTE) as answers:
        time.sleep(setting.scale.seconds)
    quiet = pauses(answers)
    builder = prepare.builder(replace(setting, folder=setting.folder / "elsewhere"))
    with worker.executing(COMPUTE) as answers:
        began = time.monotonic()
        prepare.build_one(builder, setting, "big", memory_bytes=SLACK_BYTES)
        seconds = time.monotonic() - began
    emit(executions_beside_a_builder={"quiet": quiet, "while_building": pauses(answers), "build_seconds": seconds})
    worker.close()
