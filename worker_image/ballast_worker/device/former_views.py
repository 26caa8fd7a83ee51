# SPDX-License-Identifier: Apache-2.0
"""Views of extents that were freed or moved, kept for the model that comes back to the same place.

A view is an address with a type. Nothing executes from one without a lease, so it does no harm that other bytes lie there
meanwhile. Making one takes about 20 us and dropping one 3 us, which adds up for hundreds of tensors.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from ballast_worker.bundle.layout import Layout

MOST: Final = 16_384
"""Views that are kept, about 1 KiB each; the oldest go first."""

DROPPED_AT_ONCE: Final = 16
"""Views that `drain` drops in one call, while as many as are kept wait for it at most."""


@dataclass(frozen=True, slots=True)
class _Former:
    address: int
    layout: Layout
    views: list[Any]


class FormerViews:
    """Views by extent key, the last place of each. Any thread but for `drain`."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[str, _Former] = {}
        self._count = 0
        self._dropped: deque[Any] = deque()

    def put(self, key: str, address: int, layout: Layout, views: list[Any]) -> None:
        """Keep the views of an extent that is not there any more; never drops one itself."""
        with self._lock:
            self._remove(key)
            self._kept[key] = _Former(address, layout, views)
            self._count += len(views)
            while self._count > self._most:
                self._remove(next(iter(self._kept)))

    def take(self, key: str, address: int, layout: Layout) -> list[Any] | None:
        """The views of an extent that has come back to its place, in the layout's order; None when it has not."""
        with self._lock:
            former = self._kept.get(key)
            if former is None or former.address != address or former.layout is not layout:
                return None
            del self._kept[key]
            self._count -= len(former.views)
            return former.views

    def drain(self) -> None:
        """Drop some of those that are not kept any more; more of them where they come faster than that. Copy thread only."""
        waiting = len(self._dropped)
        for _ in range(min(waiting, max(DROPPED_AT_ONCE, waiting - self._most))):
            self._dropped.popleft()

    def clear(self) -> None:
        """Drop everything: before the memory is given back."""
        with self._lock:
            self._kept.clear()
            self._count = 0
            self._dropped.clear()

    def _remove(self, key: str) -> None:
        former = self._kept.pop(key, None)
        if former is not None:
            self._count -= len(former.views)
            self._dropped.extend(former.views)
