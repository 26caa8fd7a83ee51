# SPDX-License-Identifier: Apache-2.0
"""How every benchmark reports: progress on standard error, one JSON object as the last line of standard output."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from ballast_contract.command_line import Parser

N = TypeVar("N", int, float)

KEPT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"


def progress(text: str) -> None:
    """Say on standard error what is being measured."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the figures were measured on: processor architecture, cores that this process may use, kernel, Python."""
    return {
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def above_zero(kind: Callable[[str], N]) -> Callable[[str], N]:
    """The type of an argument that counts or measures something: of this kind, finite and above 0."""

    def parse(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
        return value

    return parse


def main(
    name: str,
    measure: Callable[[argparse.Namespace], Mapping[str, Any]],
    *,
    description: str | None,
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> None:
    """Run one benchmark from the command line.

    `measure` gets the parsed arguments and returns the figures; `arguments` adds options of its own to the parser.
    With `--keep` the report is also written to docs/benchmarks/NAME.json, with `--out DIR` to DIR/NAME.json, together with
    the machine, the command and the date. A report with `failures` is printed, and written, and ends with exit code 1.
    """
    parser = Parser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", action="store_true", help=f"write the report to docs/benchmarks/{name}.json too")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write the report to DIR/{name}.json")
    arguments(parser)
    options = parser.parse_args()
    figures = dict(measure(options))
    folders = [KEPT] * options.keep + [options.out] * (options.out is not None)
    if folders:
        kept = {
            "command": " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine() | figures.pop("machine", {}),
            **figures,
        }
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps(figures), flush=True)
    if figures.get("failures"):
        sys.exit(1)
