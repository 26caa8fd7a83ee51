# SPDX-License-Identifier: Apache-2.0
"""One part, in this process: `python -m benchmarks.gpu.part NAME ...`; figures are JSON on standard output, one object a line."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.prepare import kept, pack
from benchmarks.gpu.setting import SCALES, Setting

PARTS: Final[Mapping[str, str]] = {
    "loads": "loads.measure",
    "traffic": "traffic.measure",
    "compaction": "compaction.measure",
    "locking": "locking.measure",
    "building": "building.measure",
    "scratch": "scratch.measure",
    "churn-arena": "churn.arena",
    "churn-bfc": "churn.bfc",
}

PACK: Final = "pack"


def command(name: str, setting: Setting, scale: str) -> list[str]:
    """The command line of a part."""
    where = ["--backend", setting.backend, "--scale", scale, "--folder", str(setting.folder)]
    return [sys.executable, "-m", "benchmarks.gpu.part", name, *where, "--pool", str(setting.pool)]


def measure(name: str, setting: Setting, emit: Callable[..., None]) -> None:
    """Measure one part; `emit` is called with figures as they come."""
    module, _, function = PARTS[name].partition(".")
    getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(setting, kept(setting), emit)


def _emit(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def _environment(backend: str) -> None:
    """As a worker sets it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = backend
    os.environ["JAX_ENABLE_X64"] = "1"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    sys.setswitchinterval(1e-4)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[PACK, *PARTS])
    parser.add_argument("--backend", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pool", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    setting = Setting(options.backend, SCALES[options.scale], options.folder, options.pool)
    if options.name == PACK:
        _environment("cpu")
        pack(setting)
        return
    _environment(options.backend)
    try:
        measure(options.name, setting, _emit)
    except Exception:  # noqa: BLE001 - whatever it was, it is shown
        traceback.print_exc()
        os._exit(1)  # threads of a worker that was not taken apart would hold up the end


if __name__ == "__main__":
    main()
