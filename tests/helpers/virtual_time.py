# SPDX-License-Identifier: Apache-2.0
"""An event loop whose clock jumps to the next timer as soon as nothing else is to do: hours pass in no time."""

from __future__ import annotations

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    """Never waits; says how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout=None):
        self.skipped += max(0.0, timeout or 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is the injected clock of everything that runs on it."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return 1000.0 + self._waits.skipped
