# SPDX-License-Identifier: Apache-2.0
"""Liveness: does the control loop turn, and does the device thread still take things up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ballast_worker.serving.call import Engine

STALL_SECONDS: Final = 300.0
"""A thread that has done nothing for so long hangs: longer than any execution or driver call should take."""


class Watchdog:
    """The loop calls `turned`; any thread may ask for `fault`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turned = clock()
        self._asked: float | None = None

    def turned(self, engine: Engine | None) -> None:
        """The loop has made a turn; asks the device thread for a sign of life when the last was answered."""
        self._turned = self._clock()
        if engine is not None and self._asked is None:
            self._asked = self._turned
            engine.post(self._answered)

    def fault(self) -> str | None:
        """Why the process is beyond help, or None. It never depends on a build, a plan or the operator."""
        now, asked = self._clock(), self._asked
        if now - self._turned > STALL_SECONDS:
            return f"the control loop stands still for {now - self._turned:.0f} s"
        if asked is not None and now - asked > STALL_SECONDS:
            return f"the device thread stands still for {now - asked:.0f} s"
        return None

    def _answered(self) -> None:
        self._asked = None
