#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run every part of the test suite, one after another, and say at the end what passed, failed and could not run.

Static checks run side by side first; then the unit tests in two processes; then what needs a real API server, in two that
start servers of their own and take whole files, so that they start few; then what needs the real cluster: one of its own,
started for it and removed afterwards, so that a demo beside it keeps its nodes and GPUs. The part `outage` waits for minutes
for what a cluster does about lost nodes, and only runs when it is asked for.

Examples:
    tests/run_all.py                 everything but the outage
    tests/run_all.py static unit     two parts
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
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
    "apiserver": ["-m", "apiserver", "-n", "2", "--dist", "loadfile"],
    "cluster": ["-m", "cluster and not outage", "-p", "no:randomly"],
    "outage": ["-m", "outage", "-p", "no:randomly"],
}
USUAL = ("static", "unit", "apiserver", "cluster")
ON_NODES = {"cluster", "outage"}

# The tests' own cluster. `cluster down --all` with these removes what an interrupted run has left.
OWN_CLUSTER = {
    "BALLAST_CLUSTER_NAME": "balltest",
    "BALLAST_CLUSTER_NET": "10.85.0",
    "BALLAST_CLUSTER_PODS": "10.84",
    "BALLAST_CLUSTER_SERVICES": "10.86",
    "BALLAST_CLUSTER_PORTS": "13379",
}


@dataclass
class Part:
    """How one part went."""

    name: str
    seconds: float
    passed: bool
    output: str = ""

    @property
    def last_line(self) -> str:
        """What a check says of its outcome."""
        return next((line for line in reversed(self.output.splitlines()) if line.strip()), "")


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


def tests(name: str, *more: str) -> Part:
    """Run one selection of the tests, showing what pytest prints."""
    print(f"== {' '.join([name, *more])}", flush=True)
    started = time.monotonic()
    environment = {**os.environ, **(OWN_CLUSTER if name in ON_NODES else {})}
    argv = [sys.executable, "-m", "pytest", *PYTEST[name], *more]
    code = subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode
    return Part(name, time.monotonic() - started, code == 0, "" if code != 5 else "no test was collected")


def cluster(*argv: str) -> None:
    """Run a command of the tests' own cluster."""
    subprocess.run([CLUSTER, *argv], cwd=ROOT, env={**os.environ, **OWN_CLUSTER}, check=False)


def on_nodes(name: str, *more: str) -> Part:
    """Run tests on a cluster that nothing ran on before."""
    with (Path(tempfile.gettempdir()) / "ballast-tests.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waits for another run of these tests, which has the cluster", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        cluster("down", "--all")
        try:
            return tests(name, *more)
        finally:
            cluster("down", "--all")


def attempt(name: str) -> Part:
    """Run a selection, and what failed of it once more: on a machine that was busy for a moment that is rarely the same."""
    run = on_nodes if name in ON_NODES else tests
    part = run(name)
    if part.passed:
        return part
    second = run(name, "--last-failed", "--last-failed-no-failures=none")
    second.seconds += part.seconds
    second.output = "only at the second try: see above what failed at the first" if second.passed else ""
    return second


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
    if "static" in asked:
        parts += static()
    for name in PYTEST:
        if name in asked:
            parts.append(attempt(name))
    print("\nPart                 Result   Seconds")
    for part in parts:
        print(
            f"{part.name:20} {'ok' if part.passed else 'FAILED':8} {part.seconds:7.1f}  {part.last_line if part.passed else ''}"
        )
    return 0 if all(part.passed for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
