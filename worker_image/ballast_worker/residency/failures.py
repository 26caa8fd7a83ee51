# SPDX-License-Identifier: Apache-2.0
"""Loads that end without weights on the device: who is told, and when it is tried again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ballast_contract.reasons import Reason
from ballast_worker.residency import refusals
from ballast_worker.residency.board import Board
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.records import Weights
from ballast_worker.residency.standing import Standing


class Failures:
    """What becomes of a model whose load has failed."""

    def __init__(self, *, board: Board, standing: Standing, settled: Callable[[str, Refusal | None], None]) -> None:
        """Args:
        board: the shared state.
        standing: tries again what is pursued without anybody asking.
        settled: told how each load ended.
        """
        self._board = board
        self._standing = standing
        self._settled = settled
        self._no_block: dict[str, int] = {}

    def no_room(self, weights: Weights) -> None:
        """A load that may not make others go ends without room, and is no failure."""
        model = weights.model
        model.incoming = None
        free = self._board.memory.statistics().free
        self._settled(model.name, refusals.no_free_memory(model.name, weights.nbytes, free))
        self._board.changed(model)
        self._standing.pursue(model)

    def failed(self, weights: Weights, refusal: Refusal, *, recorded: bool) -> None:
        """A load whose extent has been given up failed.

        Args:
            weights: the load.
            refusal: why.
            recorded: the decision has been put down already.
        """
        board, model = self._board, weights.model
        model.incoming = None
        model.failures += 1
        final = refusal.reason is Reason.BUNDLE_INVALID
        pause = refusals.retry_pause(model.failures)
        if refusal.retry_after_seconds is not None:
            refusal = replace(refusal, retry_after_seconds=pause)
        refusal = refusals.with_victims(refusal, weights.evicted)
        model.refusal = refusal
        model.retry_at = math.inf if final else board.clock() + pause
        if refusal.reason is Reason.NOT_CONTIGUOUS:
            self._no_block[model.name] = weights.nbytes
        if not recorded:
            board.ledger.decide(
                model=model.name,
                kind="load",
                verdict="refused",
                needed=weights.nbytes,
                memory=board.memory.statistics(),
                evicted=weights.evicted,
                moved=weights.moved,
                refusal=refusal,
            )
        if model.wanted or (final and model.live is None):
            model.wanted = False
            board.tell(lambda: board.listener.refused(model.name, refusal))
        board.changed(model)
        self._settled(model.name, refusal)
        if not final:
            self._standing.later(model, pause)

    def forget(self, name: str) -> None:
        """A model has been loaded, or is no longer waited for by anybody."""
        self._no_block.pop(name, None)

    @property
    def largest_refused(self) -> int:
        """Bytes of the largest model that was refused a block of them."""
        return max(self._no_block.values(), default=0)
