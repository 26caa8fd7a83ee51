# SPDX-License-Identifier: Apache-2.0
"""The one implementation of a lease: arrays until it is given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ballast_worker.device.memory import DeviceMemoryError


class ExtentLease:
    """Implements `memory.Lease`."""

    __slots__ = ("_arrays", "_end")

    def __init__(self, arrays: Sequence[Any], end: Callable[[], None]) -> None:
        self._arrays: Sequence[Any] | None = arrays
        self._end = end

    @property
    def arrays(self) -> Sequence[Any]:
        """One array per tensor, in argument order, until `release`."""
        if self._arrays is None:
            raise DeviceMemoryError("the lease has been released: its arrays may lie over other weights by now")
        return self._arrays

    def release(self) -> None:
        """Give the right back. Once only."""
        if self._arrays is None:
            raise DeviceMemoryError("the lease has been released already")
        self._arrays = None
        self._end()
