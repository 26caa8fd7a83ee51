# SPDX-License-Identifier: Apache-2.0
"""What is served: models come, are given other bundles and residencies, and go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.reader import Bundle
from ballast_worker.residency import refusals
from ballast_worker.residency.board import Board
from ballast_worker.residency.compaction import Compactor
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.failures import Failures
from ballast_worker.residency.loader import Loader
from ballast_worker.residency.loads import Loads
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.residency.records import Model, Purpose, Weights
from ballast_worker.residency.standing import Standing


class Registry:
    """The models of the board."""

    def __init__(
        self,
        *,
        board: Board,
        loader: Loader,
        loads: Loads,
        failures: Failures,
        standing: Standing,
        compactor: Compactor,
        turn_soon: Callable[[], None],
    ) -> None:
        """Args:
        board: the shared state.
        loader: lets go of kept host copies.
        loads: cancelled for models that go or change.
        failures: forget models that go.
        standing: pursues what models are to have.
        compactor: told of models that go.
        turn_soon: called when there is something new to do.
        """
        self._board = board
        self._loader = loader
        self._loads = loads
        self._failures = failures
        self._standing = standing
        self._compactor = compactor
        self._turn_soon = turn_soon
        self._generations = itertools.count(1)

    def register(self, model: ResidentModel) -> Refusal | None:
        """See `Residency.register`."""
        refusal = self._loads.infeasible(model)
        if refusal is not None:
            return refusal
        known = self._board.models.get(model.name)
        if known is None:
            known = self._board.add(model, next(self._generations))
            self._board.changed(known)
        else:
            self._replace(known, model)
        self._standing.pursue(known)
        self._turn_soon()
        return None

    def _replace(self, known: Model, spec: ResidentModel) -> None:
        old = known.spec
        other_bytes = old.bundle.digest != spec.bundle.digest
        self._board.specify(known, spec)
        if known.kept and (other_bytes or spec.wish is not ResidencyWish.SYSTEM):
            self._unkeep(known, old.bundle)
        if other_bytes or old.bundle.weights_identity != spec.bundle.weights_identity or old.wish is not spec.wish:
            known.refusal, known.failures, known.retry_at = None, 0, 0.0
        if other_bytes:
            known.generation = next(self._generations)
            known.reload_seconds = None
            if known.incoming is not None:
                self._loads.cancel(known.incoming)
                if known.wanted and known.live is None:
                    self._board.ask(known, Purpose.WANTED)
        elif known.live is not None:
            self._board.memory.pin(known.live.extent, pinned=spec.wish is ResidencyWish.DEVICE)
        self._board.changed(known)

    def _unkeep(self, model: Model, bundle: Bundle) -> None:
        model.kept = False
        if not self._board.keeps(bundle):
            self._loader.unkeep(bundle)

    def forget(self, name: str, done: Callable[[], None]) -> None:
        """See `Residency.forget`."""
        board = self._board
        model = board.models.get(name)
        if model is None:
            board.tell(done)
            board.flush()
            return
        board.specify(model, None)
        board.ledger.drop(name)
        self._failures.forget(name)
        model.intent = 0
        if model.kept:
            self._unkeep(model, model.spec.bundle)
        if model.wanted:
            model.wanted = False
            board.tell(lambda: board.listener.refused(name, refusals.not_served(name)))
        self._when_gone(model, done)
        if model.incoming is not None:
            self._loads.cancel(model.incoming)
        if model.live is not None:
            board.retire(model.live)
            model.live = None
        self._compactor.settled(name, refusals.not_served(name))
        board.tell(lambda: board.listener.changed(name))
        self._turn_soon()
        board.flush()

    def _when_gone(self, model: Model, done: Callable[[], None]) -> None:
        remaining = [weights for weights in self._board.extents.values() if weights.model is model]

        def gone(weights: Weights) -> None:
            remaining.remove(weights)
            if not remaining:
                self._board.tell(done)

        for weights in remaining:
            weights.gone = partial(gone, weights)
        if not remaining:
            self._board.tell(done)
