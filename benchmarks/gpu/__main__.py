# SPDX-License-Identifier: Apache-2.0
"""Loads, traffic, compaction, churn, plan, page-locking and scratch of a worker, on an NVIDIA GPU.

With `--backend cpu --scale small` the same code runs anywhere in a minute; its figures then say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ballast_worker.build import runtime
from ballast_worker.device.probe import describe
from benchmarks import report
from benchmarks.gpu import prepare
from benchmarks.gpu.part import PACK, PARTS, command
from benchmarks.gpu.setting import SCALES, Setting

PART_SECONDS: Final = 120.0
"""A part that takes longer is ended; what it has printed counts."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where a worker's host pool is


class PartError(Exception):
    """A part failed or took too long."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every part, one after the other. A part that fails is named under `failures`, and the rest goes on."""
    figures: dict[str, Any] = {"machine": _machine(options.backend), "scale": options.scale}
    failures = {}
    with _setting(options) as setting:
        _run(PACK, setting, options.scale, figures)
        prepare.keep(setting, prepare.build(setting))
        for name in options.parts or PARTS:
            began = time.monotonic()
            try:
                _run(name, setting, options.scale, figures)
            except PartError as error:
                failures[name] = str(error)
                report.progress(str(error))
            report.progress(f"{name}: {time.monotonic() - began:.1f} s")
    return figures | ({"failures": failures} if failures else {})


@contextlib.contextmanager
def _setting(options: argparse.Namespace) -> Iterator[Setting]:
    """Folders of this run, removed afterwards: all in shared memory, so that no disk is waited for, where it has room."""
    needed = 3 * sum(size.nbytes for size in SCALES[options.scale].sizes().values())
    roomy = shutil.disk_usage(SHARED_MEMORY).free > needed
    with (
        tempfile.TemporaryDirectory(prefix="ballast-benchmark-", dir=SHARED_MEMORY if roomy else None) as folder,
        tempfile.TemporaryDirectory(prefix="ballast-benchmark-", dir=SHARED_MEMORY) as pool,
    ):
        yield Setting(options.backend, SCALES[options.scale], Path(folder), Path(pool) / "pool")


def _run(name: str, setting: Setting, scale: str, figures: dict[str, Any]) -> None:
    """Run a part in a process of its own; its figures go into `figures` as they come.

    Raises:
        PartError: it did not end well.
    """
    report.progress(f"{name} begins")
    with subprocess.Popen(command(name, setting, scale), stdout=subprocess.PIPE, text=True, process_group=0) as process:
        timer = threading.Timer(PART_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in process.stdout or ():
                figures.update(json.loads(line))
                report.progress(f"{name}: {line.strip()}")
        finally:
            timer.cancel()
    if process.returncode:
        raise PartError(f"{name} ended with exit code {process.returncode}; its last words are above")


def _machine(backend: str) -> dict[str, Any]:
    facts = describe("cuda" if backend == "cuda" else "cpu", 0)
    return {
        "device": facts.name,
        "device_bytes": facts.total_bytes,
        "driver": runtime.describe(backend, facts.name).driver,
        "jax": metadata.version("jax"),
    }


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")


if __name__ == "__main__":
    report.main("gpu", measure, description=__doc__, arguments=_arguments)
