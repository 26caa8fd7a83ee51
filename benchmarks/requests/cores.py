# SPDX-License-Identifier: Apache-2.0
"""Who runs where: the server on one core, what makes its requests on another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """Numbers of the cores of the server and of the generator of requests; on a machine of one core they are the same."""

    server: int
    generator: int


def choose() -> Cores:
    """The first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[min(1, len(usable) - 1)])


@contextmanager
def bound_to(core: int) -> Iterator[None]:
    """Run the block on one core, and so every process and thread that it starts, for as long as they live."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
