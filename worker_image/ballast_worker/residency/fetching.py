# SPDX-License-Identifier: Apache-2.0
"""The first step of a load: intents are taken up as file threads come free, and each gets a host copy or a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ballast_contract.config import ResidencyWish
from ballast_worker.host.store import Transfer
from ballast_worker.residency.board import Board
from ballast_worker.residency.loader import Loader
from ballast_worker.residency.records import Model, Purpose, Weights


class Fetching:
    """Takes up intents, as many at a time as there are file threads."""

    def __init__(
        self,
        *,
        board: Board,
        loader: Loader,
        early: Callable[[Weights], bool],
        fetched: Callable[[Weights, Transfer | Exception | None], None],
    ) -> None:
        """Args:
        board: the shared state.
        loader: the threads.
        early: called before a load is fetched; false where it has ended.
        fetched: called with what was fetched, or why nothing was; None for a load that was cancelled meanwhile.
        """
        self._board = board
        self._loader = loader
        self._early = early
        self._fetched = fetched
        # By whether a request waits for it.
        self._running = {True: 0, False: 0}

    def begin(self, *, waiting: int) -> None:
        """Begin as many as there are threads for; one of them stays free for what requests wait for, and one for the
        rest.

        Args:
            waiting: loads that are fetched and wait for room, of which there should not be too many.
        """
        threads = self._loader.file_threads
        while (running := self._running[True] + self._running[False]) < threads and running + waiting < 2 * threads:
            others = self._running[False] < max(1, threads - 1)
            order = (False, True) if threads > 1 and not self._running[False] else (True, False)
            for wanted in order:
                if (wanted or others) and (intent := self._board.intents.pop(wanted=wanted)) is not None:
                    self._start(*intent)
                    break
            else:
                return

    def _start(self, model: Model, purpose: Purpose, ticket: int) -> None:
        weights = Weights(
            extent=f"{model.name}#{model.generation}",
            model=model,
            bundle=model.spec.bundle,
            purpose=purpose,
            ticket=ticket,
            started=model.asked,
        )
        if not self._early(weights):
            return
        model.incoming = weights
        self._running[purpose is Purpose.WANTED] += 1
        keep = model.spec.wish is ResidencyWish.SYSTEM
        self._loader.fetch(weights.bundle, keep=keep, done=partial(self._done, weights, purpose, keep=keep))
        self._board.changed(model)

    def _done(
        self, weights: Weights, begun_as: Purpose, result: Transfer | Exception, seconds: float, *, keep: bool
    ) -> None:
        self._running[begun_as is Purpose.WANTED] -= 1
        weights.work_seconds += seconds
        if keep and not self._board.keeps(weights.bundle):
            self._loader.unkeep(weights.bundle)
        elif keep and not weights.cancelled and not isinstance(result, Exception):
            weights.model.kept = result.kept
        if weights.cancelled and not isinstance(result, Exception):
            self._loader.discard(result)
        self._fetched(weights, None if weights.cancelled else result)
