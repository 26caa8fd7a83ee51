# SPDX-License-Identifier: Apache-2.0
"""The life of a load: fetch a host copy (`fetching`), wait for room (`waiting`), fill the extent, serve.

Host copies are fetched before room is made on the device, so that residents stay useful while a slow source is read, and
a source that cannot be read costs nobody their place. Room goes to fetched loads in order of their tickets: a large load
cannot be overtaken for ever by small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ballast_contract.config import ResidencyWish
from ballast_worker.device.backend import DeviceLostError
from ballast_worker.host.store import Transfer
from ballast_worker.residency import refusals
from ballast_worker.residency.admission import Wait, infeasible
from ballast_worker.residency.board import Board
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.exclusion import Exclusion
from ballast_worker.residency.failures import Failures
from ballast_worker.residency.fetching import Fetching
from ballast_worker.residency.loader import Loader
from ballast_worker.residency.priority import minimum_residence
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.residency.records import Phase, Purpose, Weights
from ballast_worker.residency.room import Room
from ballast_worker.residency.standing import Standing
from ballast_worker.residency.waiting import Waiting

RELOAD_WEIGHT = 0.5
"""Share of the newest measurement in the moving average of reload times."""


class Loads:
    """Begins, follows and ends loads."""

    def __init__(
        self,
        *,
        board: Board,
        loader: Loader,
        standing: Standing,
        exclusion: Exclusion,
        failures: Failures,
        scratch_limit: int,
        weights_percent: int,
        after: Callable[[float, Callable[[], None]], None],
        turn: Callable[[], None],
        settled: Callable[[str, Refusal | None], None],
    ) -> None:
        """Args:
        board: the shared state.
        loader: the threads.
        standing: told when a load has ended, so that what else a model is to have is pursued.
        exclusion: told of fills, and asked before each.
        failures: told of loads that end without weights.
        scratch_limit: bytes of the pool for scratch.
        weights_percent: of what a budget grows by, the part that is for weights.
        after: runs an action on the device thread after so many seconds.
        turn: called when a load has come a step further, to see what can be done now.
        settled: told how each load ended.
        """
        self._board = board
        self._loader = loader
        self._standing = standing
        self._exclusion = exclusion
        self._failures = failures
        self._scratch_limit, self._weights_percent = scratch_limit, weights_percent
        self._turn = turn
        self._settled = settled
        self._room = Room(board)
        self._waiting = Waiting(
            board=board,
            room=self._room,
            exclusion=exclusion,
            infeasible=self.infeasible,
            fill=self._fill,
            refused=self._refused,
            no_room=self._no_room,
            after=after,
            turn=turn,
        )
        self._fetching = Fetching(board=board, loader=loader, early=self._early, fetched=self._fetched)

    def infeasible(self, spec: ResidentModel) -> Refusal | None:
        """Refuse what can never fit, and record it."""
        memory = self._board.memory.statistics()
        refusal = infeasible(
            model=spec.name,
            nbytes=spec.bundle.layout.nbytes,
            scratch=spec.scratch_bytes,
            capacity=memory.capacity,
            pinned=self._board.pinned_beside(spec),
            scratch_limit=self._scratch_limit,
            weights_percent=self._weights_percent,
        )
        if refusal is not None:
            self._board.ledger.count(admission_failures=1)
            self._board.ledger.decide(
                model=spec.name,
                kind="load",
                verdict="refused",
                needed=spec.bundle.layout.nbytes,
                memory=memory,
                refusal=refusal,
            )
        return refusal

    def begin(self) -> None:
        """Begin as many loads as there are file threads for."""
        self._fetching.begin(waiting=len(self._waiting))

    def _early(self, weights: Weights) -> bool:
        """Place what is placed before it is fetched; False where the load has ended, because it may not make others go."""
        if not weights.purpose.largest_first or self._place_early(weights) or weights.purpose.evicts:
            return True
        self._failures.no_room(weights)
        return False

    def _place_free(self, weights: Weights) -> bool:
        return not self._waiting and self._room.place_free(weights)

    def _place_early(self, weights: Weights) -> bool:
        """Before there is anything to fill it with; or whether there may be room by then, where one is placed at a time."""
        memory = self._board.memory
        return weights.nbytes <= memory.statistics().free if memory.shares_pool else self._place_free(weights)

    def _fetched(self, weights: Weights, result: Transfer | Exception | None) -> None:
        if isinstance(result, Exception):
            self._failed(weights, refusals.of_error(weights.model.name, result))
        elif result is not None and weights.purpose is Purpose.HOST:
            self._loader.discard(result)
            self._on_host(weights, kept=result.kept)
        elif result is not None:
            weights.transfer = result
            self._on_the_way(weights)
        self._turn()

    def _on_the_way(self, weights: Weights) -> None:
        shared = self._board.memory.shares_pool
        if weights.placed or (not (shared or weights.purpose.evicts) and self._place_free(weights)):
            self._fill(weights)
        elif shared or weights.purpose.evicts:
            weights.phase = Phase.WAITING
            self._waiting.add(weights)
        else:
            self._no_room(weights)

    def _on_host(self, weights: Weights, *, kept: bool) -> None:
        model = weights.model
        if not kept:
            self._failed(weights, refusals.no_host_copy(model.name, weights.nbytes))
            return
        model.incoming = None
        model.refusal, model.failures, model.retry_at = None, 0, 0.0
        self._board.changed(model)
        self._standing.pursue(model)

    def admit(self) -> Wait | None:
        """See `Waiting.admit`."""
        return self._waiting.admit()

    def _fill(self, weights: Weights) -> None:
        transfer = weights.transfer
        assert transfer is not None, "weights are filled from a transfer"  # noqa: S101
        weights.phase = Phase.FILLING
        self._exclusion.fill_began()
        self._loader.fill(weights.extent, transfer, partial(self._filled, weights))

    def _filled(self, weights: Weights, error: Exception | None, seconds: float) -> None:
        if isinstance(error, DeviceLostError):
            raise error  # no other load can succeed either: whoever runs the device thread ends the process
        weights.transfer = None
        weights.work_seconds += seconds
        self._exclusion.fill_ended()
        if weights.cancelled:
            self._board.abandon(weights)
        elif error is not None:
            self._failed(weights, refusals.of_error(weights.model.name, error))
        else:
            self._ready(weights)
        self._turn()

    def _ready(self, weights: Weights) -> None:
        board, model = self._board, weights.model
        board.memory.activate(weights.extent)
        self._room.keep_scratch(weights)
        now = board.clock()
        weights.phase, weights.last_use = Phase.READY, now
        model.load_seconds = now - weights.started
        before = weights.work_seconds if model.reload_seconds is None else model.reload_seconds
        model.reload_seconds = before + RELOAD_WEIGHT * (weights.work_seconds - before)
        board.ledger.count(
            loads=1,
            on_demand_loads=int(weights.purpose is Purpose.WANTED),
            load_seconds=model.load_seconds,
            load_bytes=weights.nbytes,
            load_wait_seconds=max(0.0, model.load_seconds - weights.work_seconds),
        )
        if model.live is not None:
            board.retire(model.live)
        model.live, model.incoming = weights, None
        weights.unused, model.wanted, model.deferred = model.wanted, False, False
        model.refusal, model.failures, model.retry_at = None, 0, 0.0
        self._failures.forget(model.name)
        pinned = model.spec.wish is ResidencyWish.DEVICE
        board.memory.pin(weights.extent, pinned=pinned)
        board.tell(lambda: board.listener.loaded(model.name))
        board.changed(model)
        board.log("load", weights, seconds=model.load_seconds)
        self._settled(model.name, None)
        self._standing.pursue(model)

    def first_use(self, weights: Weights) -> None:
        """A request that a load was made for executes now."""
        if weights.unused:
            weights.unused = False
            weights.stays_until = self._board.clock() + minimum_residence(weights.work_seconds)

    def cancel(self, weights: Weights) -> None:
        """End a load that is of no use any more. Its extent is free at once, or when its copy has ended."""
        weights.cancelled = True
        weights.model.incoming = None
        if weights.phase is Phase.WAITING:
            self._waiting.remove(weights)
            self._discard(weights)
        if weights.phase is not Phase.FILLING:
            self._board.abandon(weights)
        self._settled(weights.model.name, refusals.not_served(weights.model.name))

    def _discard(self, weights: Weights) -> None:
        if weights.transfer is not None:
            self._loader.discard(weights.transfer)
            weights.transfer = None

    def _no_room(self, weights: Weights) -> None:
        self._discard(weights)
        self._failures.no_room(weights)

    def _refused(self, weights: Weights, refusal: Refusal) -> None:
        self._discard(weights)
        self._failed(weights, refusal, recorded=True)

    def _failed(self, weights: Weights, refusal: Refusal, *, recorded: bool = False) -> None:
        self._board.abandon(weights)
        self._failures.failed(weights, refusal, recorded=recorded)

    @property
    def waiting(self) -> bool:
        """Whether a fetched load waits for room."""
        return bool(self._waiting)

    def largest_waiting(self) -> int:
        """Bytes of the largest model that waits for room, or was refused a block of it."""
        return max(self._waiting.largest, self._failures.largest_refused)
