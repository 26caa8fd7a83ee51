#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run every part of the test suite, one after another, and say at the end what passed, failed and could not run.

Static checks run side by side first; then the unit tests on every core; then what needs a real API server; then what
needs the real cluster, which is started for it and stopped afterwards unless it ran before. The part `outage` waits for
minutes for what a cluster does about lost nodes, and only runs when it is asked for.

Examples:
    tests/run_all.py                 everything but the outage
    tests/run_all.py static unit     two parts
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CLUSTER = ROOT / "e2e" / "cluster" / "cluster"

STATIC = {
    "format": [BIN / "ruff", "format", "--check", "."],
    "lint": [BIN / "ruff", "check", "."],
    "types": [BIN / "mypy", "operator", "worker_image", "e2e", "benchmarks"],
    "layers": [BIN / "lint-imports"],
    "generated files": [sys.executable, "e2e/generate.py", "--check"],
}
PYTEST = {
    "unit": ["-m", "not apiserver and not cluster and not gpu", "-n", "2", "--dist", "worksteal"],
    "apiserver": ["-m", "apiserver"],
    "cluster": ["-m", "cluster and not outage", "-p", "no:randomly"],
    "outage": ["-m", "outage", "-p", "no:randomly"],
}
USUAL = ("static", "unit", "apiserver", "cluster")


@dataclass
class Part:
    """How one part went."""

    name: str
    seconds: float
    passed: bool
    output: str = ""


def static() -> list[Part]:
    """Run the static checks side by side."""
    started = time.monotonic()
    running = {
        name: subprocess.Popen(
            [str(a) for a in argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name, argv in STATIC.items()
    }
    parts = []
    for name, process in running.items():
        output, _ = process.communicate()
        parts.append(Part(name, time.monotonic() - started, process.returncode == 0, output))
        print(f"== {name}: {'ok' if parts[-1].passed else 'FAILED'}", flush=True)
        if not parts[-1].passed:
            print(output, flush=True)
    return parts


def tests(name: str) -> Part:
    """Run one selection of the tests with coverage, showing what pytest prints."""
    print(f"== {name}", flush=True)
    started = time.monotonic()
    environment = {**os.environ, "COVERAGE_FILE": str(ROOT / f".coverage.{name}")}
    argv = [str(BIN / "coverage"), "run", "-m", "pytest", *PYTEST[name]]
    code = subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode
    return Part(name, time.monotonic() - started, code == 0, "" if code != 5 else "no test was collected")


def cluster_runs() -> bool:
    """Whether the local cluster is up now."""
    return subprocess.run([CLUSTER, "status"], cwd=ROOT, capture_output=True, check=False).returncode == 0


def main() -> int:
    """Run the parts asked for; 0 when all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"static, {', '.join(PYTEST)}; default: all but outage"
    )
    asked = parser.parse_args().parts or list(USUAL)
    if unknown := set(asked) - {"static", *PYTEST}:
        parser.error(f"unknown part '{unknown.pop()}': the parts are static, {', '.join(PYTEST)}")
    parts: list[Part] = []
    for old in ROOT.glob(".coverage.*"):
        old.unlink()
    if "static" in asked:
        parts += static()
    ran_before = cluster_runs() if {"cluster", "outage"} & set(asked) else True
    for name in PYTEST:
        if name in asked:
            parts.append(tests(name))
    if not ran_before:
        subprocess.run([CLUSTER, "down"], cwd=ROOT, check=False)
    subprocess.run([BIN / "coverage", "combine", "--quiet"], cwd=ROOT, check=False)
    subprocess.run([BIN / "coverage", "report", "--format=total"], cwd=ROOT, check=False)
    print("\nPart                 Result   Seconds")
    for part in parts:
        print(
            f"{part.name:20} {'ok' if part.passed else 'FAILED':8} {part.seconds:7.1f}  {part.output if part.passed else ''}"
        )
    return 0 if all(part.passed for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
