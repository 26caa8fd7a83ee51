# SPDX-License-Identifier: Apache-2.0
"""The owner of every model's tier on this worker: implements `residency.protocol.Residency` on the device thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ballast_contract.reasons import Reason
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory, DeviceMemoryError, Lease
from ballast_worker.host.store import HostStore
from ballast_worker.residency import refusals
from ballast_worker.residency.board import Board
from ballast_worker.residency.compaction import Compactor
from ballast_worker.residency.demand import Decision, Demand, Readiness, Refusal
from ballast_worker.residency.exclusion import Exclusion
from ballast_worker.residency.failures import Failures
from ballast_worker.residency.ledger import Ledger
from ballast_worker.residency.loader import Loader
from ballast_worker.residency.loads import Loads
from ballast_worker.residency.priority import faded
from ballast_worker.residency.protocol import (
    CompactionMode,
    CompactionResult,
    Listener,
    ResidencySnapshot,
    ResidentModel,
)
from ballast_worker.residency.records import Intents, Model, Purpose, Weights
from ballast_worker.residency.registry import Registry
from ballast_worker.residency.standing import Standing

REFUSAL_KEPT_SECONDS = 1.0
"""A load that is refused at once is not considered again for so long."""


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
        weights_percent: int,
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
            weights_percent: of what a budget grows by, the part that is for weights.
            after: runs an action on the device thread after so many seconds; by default a timer and `post`.
            clock: monotonic seconds.
            wall_clock: seconds since the epoch, for decision records.
        """
        self._store = store
        self._post = post
        self._ledger = Ledger(wall_clock=wall_clock)
        self._board = Board(
            memory=memory,
            demand=demand,
            listener=listener,
            ledger=self._ledger,
            clock=clock,
            models={},
            extents={},
            intents=Intents(),
            notices=[],
            tickets=itertools.count(1),
        )
        self._compactor = Compactor(self._board)
        after = after or partial(_timer, post)
        standing = Standing(board=self._board, after=after, turn=self._turn)
        self._exclusion = Exclusion(self._board)
        failures = Failures(board=self._board, standing=standing, settled=self._compactor.settled)
        self._loads = Loads(
            board=self._board,
            loader=loader,
            standing=standing,
            exclusion=self._exclusion,
            failures=failures,
            scratch_limit=scratch_limit,
            weights_percent=weights_percent,
            after=after,
            turn=self._turn,
            settled=self._compactor.settled,
        )
        self._registry = Registry(
            board=self._board,
            loader=loader,
            loads=self._loads,
            failures=failures,
            standing=standing,
            compactor=self._compactor,
            turn_soon=self._turn_soon,
        )
        self._turn_posted = False
        self._held_back: set[str] = set()
        self._draining: list[Weights] = []

    # What is served

    def register(self, model: ResidentModel) -> Refusal | None:
        """See `Residency.register`."""
        return self._registry.register(model)

    def forget(self, name: str, done: Callable[[], None]) -> None:
        """See `Residency.forget`."""
        self._registry.forget(name, done)

    def fill_free(self) -> None:
        """Load on-demand models into memory that is free now, largest first, evicting nothing: once, after the start."""
        for model in self._board.models.values():
            if model.live is None:
                self._board.ask(model, Purpose.FILL)
        self._turn_soon()

    # Requests

    def want(self, name: str) -> Readiness | Refusal:
        """See `Residency.want`."""
        board = self._board
        model = board.models.get(name)
        if model is None:
            return refusals.not_served(name)
        if model.live is not None:
            if not board.quiet and not model.live.draining:
                return Readiness.READY
            model.deferred = True
            self._held_back.add(name)
            return Readiness.LOADING
        if model.wanted:
            return Readiness.LOADING
        if model.incoming is not None:
            model.wanted = True
            self._board.ask(model, Purpose.WANTED)
            return Readiness.LOADING
        refusal = self._refused_now(model)
        if refusal is not None:
            return refusal
        model.wanted = True
        board.ask(model, Purpose.WANTED)
        self._loads.begin()
        board.flush()
        return Readiness.LOADING

    def _refused_now(self, model: Model) -> Refusal | None:
        now = self._board.clock()
        # Where only the host copy cannot be had, requests load from the file.
        host_only = model.refusal is not None and model.refusal.reason is Reason.INSUFFICIENT_HOST_MEMORY
        if model.refusal is not None and not host_only and now < model.retry_at:
            if model.refusal.retry_after_seconds is None:
                return model.refusal
            return replace(model.refusal, retry_after_seconds=model.retry_at - now)
        refusal = self._loads.infeasible(model.spec)
        if refusal is not None:
            model.refusal, model.retry_at = refusal, now + REFUSAL_KEPT_SECONDS
            self._board.changed(model)
            self._board.flush()
        return refusal

    def lease(self, name: str) -> Lease:
        """See `Residency.lease`.

        Raises:
            DeviceMemoryError: the model is not on the device, or may not be executed now.
        """
        board = self._board
        model = board.models.get(name)
        weights = model.live if model is not None else None
        if weights is None or weights.draining or board.quiet:
            raise DeviceMemoryError(f"'{name}' cannot be leased now: ask `want` first, in the same turn")
        inner = board.memory.lease(weights.extent)
        weights.leases += 1
        board.leases += 1
        self._loads.first_use(weights)
        return _Lease(inner, partial(self._released, weights))

    def _released(self, weights: Weights) -> None:
        self._board.released(weights)
        self._exclusion.executed()
        if self._compactor.wants_quiet or self._loads.waiting or self._board.notices:
            self._turn_soon()

    def serving(self, name: str) -> Bundle | None:
        """See `Residency.serving`."""
        model = self._board.models.get(name)
        if model is None:
            return None
        return model.spec.bundle if model.live is None else model.live.bundle

    def expected_load_seconds(self, name: str) -> float | None:
        """See `Residency.expected_load_seconds`."""
        model = self._board.models.get(name)
        if model is None or (model.live is not None and not model.live.draining):
            return None  # it is held back at most, for as long as others need
        return model.reload_seconds

    def dispatched(self, name: str) -> None:
        """See `Residency.dispatched`."""
        model = self._board.models.get(name)
        if model is None or model.live is None:
            return
        now = self._board.clock()
        model.uses = 1.0 + faded(model.uses, now - model.last_use)
        model.last_use = model.live.last_use = now

    # Compaction

    def compact(
        self, mode: CompactionMode, reload: Sequence[str], done: Callable[[CompactionResult | Refusal], None]
    ) -> None:
        """See `Residency.compact`."""
        self._compactor.ask(mode, reload, done)
        self._turn()

    # What comes next

    def _turn_soon(self) -> None:
        """Look at everything anew once the caller has finished; a batch of registrations is then seen together."""
        if not self._turn_posted:
            self._turn_posted = True
            self._post(self._posted_turn)

    def _posted_turn(self) -> None:
        self._turn_posted = False
        self._turn()

    def _turn(self) -> None:
        """Do everything that has become possible, and hold back the executions that stand in the way of the rest."""
        board = self._board
        board.quiet = self._compactor.wants_quiet
        if board.quiet and not board.leases and not self._exclusion.filling:
            self._compactor.compact()
            board.quiet = False
        waits = None if board.quiet else self._loads.admit()
        board.quiet = board.quiet or self._exclusion.filling or (waits is not None and waits.quiet)
        self._drain([board.extents[r.extent] for r in waits.drain] if waits is not None else [])
        self._loads.begin()
        self._ledger.set_largest_waiting(self._loads.largest_waiting())
        board.flush()

    def _drain(self, weights: list[Weights]) -> None:
        for earlier in self._draining:
            earlier.draining = False
        self._draining = weights
        for now in weights:
            now.draining = True
        if self._board.quiet:
            return
        for name in sorted(self._held_back):
            model = self._board.models.get(name)
            if model is not None and model.live is not None and model.live.draining:
                continue
            self._held_back.discard(name)
            if model is not None and model.live is not None and model.deferred:
                model.deferred = False
                self._board.tell(partial(self._board.listener.loaded, name))

    # Readers

    def snapshot(self) -> ResidencySnapshot:
        """See `Residency.snapshot`."""
        return self._ledger.snapshot(self._store.has)

    def decisions(self) -> tuple[Decision, ...]:
        """See `Residency.decisions`."""
        return self._ledger.decisions()


class _Lease:
    """A lease of the device memory whose end residency hears of."""

    __slots__ = ("_inner", "_released")

    def __init__(self, inner: Lease, released: Callable[[], None]) -> None:
        self._inner = inner
        self._released: Callable[[], None] | None = released

    @property
    def arrays(self) -> Sequence[Any]:
        """See `Lease.arrays`."""
        return self._inner.arrays

    def release(self) -> None:
        """See `Lease.release`."""
        released, self._released = self._released, None
        self._inner.release()
        if released is not None:
            released()


def _timer(post: Callable[[Callable[[], None]], None], seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(max(seconds, 0.0), post, (action,))
    timer.daemon = True
    timer.start()
