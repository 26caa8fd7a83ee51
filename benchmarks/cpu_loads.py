# SPDX-License-Identifier: Apache-2.0
"""Requests with large inputs while a large model loads over and over, on the CPU: what it costs them, what they cost it.

The part `traffic` of the benchmark of the GPU with the scale `cpu`: 500 requests a second of 600 KiB, loads of 100 MB, and
the rate of plain copies as the limit. It wants two cores for itself.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import report
from benchmarks.gpu import __main__ as gpu


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the part."""
    return gpu.measure(argparse.Namespace(**vars(options), backend="cpu", scale="cpu", parts=["traffic"]))


if __name__ == "__main__":
    report.main("cpu_loads", measure, description=__doc__)
