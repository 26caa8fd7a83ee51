# SPDX-License-Identifier: Apache-2.0
"""The owner of every model's tier on this worker: implements `residency.protocol.Residency` on the device thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory, Lease
from ballast_worker.host.store import HostStore
from ballast_worker.residency.demand import Decision, Demand, Readiness, Refusal
from ballast_worker.residency.loader import Loader
from ballast_worker.residency.protocol import (
    CompactionMode,
    CompactionResult,
    Listener,
    ResidencySnapshot,
    ResidentModel,
)


class ResidencyManager:
    """Admission, eviction, loads and compaction of one worker's weights."""

    def __init__(
        self,
        *,
        memory: DeviceMemory,
        store: HostStore,
        demand: Demand,
        listener: Listener,
        post: Callable[[Callable[[], None]], None],
        loader: Loader,
        scratch_limit: int,
        after: Callable[[float, Callable[[], None]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Own `memory` from now on.

        Args:
            memory: placed into, filled and freed by nobody else.
            store: asked for host copies through `loader`, and whether it has one.
            demand: the queues.
            listener: told on the device thread.
            post: runs an action on the device thread, soon, in order; any thread may call it.
            loader: the copy thread and the file pool; the caller closes it.
            scratch_limit: bytes of the pool that executions take their scratch from.
            after: runs an action on the device thread after so many seconds; by default a timer and `post`.
            clock: monotonic seconds.
            wall_clock: seconds since the epoch, for decision records.
        """
        raise NotImplementedError

    def register(self, model: ResidentModel) -> Refusal | None:
        """See `Residency.register`."""
        raise NotImplementedError

    def forget(self, name: str, done: Callable[[], None]) -> None:
        """See `Residency.forget`."""
        raise NotImplementedError

    def want(self, name: str) -> Readiness | Refusal:
        """See `Residency.want`."""
        raise NotImplementedError

    def lease(self, name: str) -> Lease:
        """See `Residency.lease`."""
        raise NotImplementedError

    def serving(self, name: str) -> Bundle | None:
        """See `Residency.serving`."""
        raise NotImplementedError

    def expected_load_seconds(self, name: str) -> float | None:
        """See `Residency.expected_load_seconds`."""
        raise NotImplementedError

    def dispatched(self, name: str) -> None:
        """See `Residency.dispatched`."""
        raise NotImplementedError

    def compact(
        self, mode: CompactionMode, reload: Sequence[str], done: Callable[[CompactionResult | Refusal], None]
    ) -> None:
        """See `Residency.compact`."""
        raise NotImplementedError

    def fill_free(self) -> None:
        """Load on-demand models into memory that is free now, largest first, evicting nothing: once, after the start."""
        raise NotImplementedError

    def snapshot(self) -> ResidencySnapshot:
        """See `Residency.snapshot`."""
        raise NotImplementedError

    def decisions(self) -> tuple[Decision, ...]:
        """See `Residency.decisions`."""
        raise NotImplementedError
