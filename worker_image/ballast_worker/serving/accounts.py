# SPDX-License-Identifier: Apache-2.0
"""What each model has done: counters and the last waits, written by the device thread and read by any."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ballast_worker.serving.call import ModelLoad

_RING: Final = 512
"""Waits that percentiles are taken from."""


@dataclass(slots=True)
class _Account:
    requests: int = 0
    rows: int = 0
    dispatches: int = 0
    compute_seconds: float = 0.0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_RING))

    def copy(self) -> _Account:
        return replace(self, waits=self.waits.copy())

    def load(self, queued: int) -> ModelLoad:
        waits = sorted(self.waits)
        return ModelLoad(
            requests=self.requests,
            rows=self.rows,
            dispatches=self.dispatches,
            compute_seconds=self.compute_seconds,
            queued=queued,
            queue_wait_p50=_quantile(waits, 0.5),
            queue_wait_p99=_quantile(waits, 0.99),
        )


_NOTHING: Final = _Account()


class Accounts:
    """One account per model name, kept for the life of the process so that its counters never fall."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def dispatched(self, model: str, *, rows: int, seconds: float, waits: Sequence[float]) -> None:
        """An execution has ended: its rows, its seconds on the device, and how long each of its calls had waited."""
        with self._lock:
            account = self._accounts.setdefault(model, _Account())
            account.waits.extend(waits)
            account.requests += len(waits)
            account.rows += rows
            account.dispatches += 1
            account.compute_seconds += seconds

    def snapshot(self, queued: Mapping[str, int]) -> dict[str, ModelLoad]:
        """The accounts of the models in `queued`, which gives the calls that wait now."""
        with self._lock:
            copies = {model: self._accounts.get(model, _NOTHING).copy() for model in queued}
        return {model: account.load(queued[model]) for model, account in copies.items()}


def _quantile(ordered: list[float], share: float) -> float:
    """Nearest-rank quantile; 0 before the first wait, when `requests` is 0 too."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
