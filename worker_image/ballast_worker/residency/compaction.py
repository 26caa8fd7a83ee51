# SPDX-License-Identifier: Apache-2.0
"""Making the free device memory one block on demand: by sliding, or by freeing and reloading, largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ballast_contract.reasons import Reason
from ballast_worker.device.memory import Moves, Statistics
from ballast_worker.residency import refusals
from ballast_worker.residency.admission import Excluded
from ballast_worker.residency.board import Board
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult
from ballast_worker.residency.records import Purpose


@dataclass(slots=True)
class _Run:
    mode: CompactionMode
    names: tuple[str, ...]
    done: Callable[[CompactionResult | Refusal], None]
    asked: float
    before: Statistics
    moves: Moves | None = None
    moved_at: float = 0.0
    pending: set[str] = field(default_factory=set)
    reloaded: list[str] = field(default_factory=list)
    failed: dict[str, Refusal] = field(default_factory=dict)


class Compactor:
    """At most one compaction at a time: it waits for a quiet moment, then for its reloads."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._run: _Run | None = None

    @property
    def wants_quiet(self) -> bool:
        """A compaction waits for running executions to end."""
        return self._run is not None and self._run.moves is None

    def ask(
        self, mode: CompactionMode, reload: Sequence[str], done: Callable[[CompactionResult | Refusal], None]
    ) -> None:
        """Compact as soon as nothing executes."""
        if self._run is not None:
            refusal = Refusal(Reason.BUSY, "a compaction is running already: ask again when it has ended", 1.0)
            self._board.tell(lambda: done(refusal))
            return
        names = tuple(dict.fromkeys(reload)) if mode is CompactionMode.FREE else ()
        self._run = _Run(mode, names, done, self._board.clock(), self._board.memory.statistics())

    def compact(self) -> None:
        """Do it. Nothing executes."""
        run, board = self._run, self._board
        assert run is not None, "a compaction was asked for"  # noqa: S101
        run.before = board.memory.statistics()
        residents = board.residents()
        # A model that a request has been waiting for stays until the request has run, as under admission.
        goes = (Excluded.NOT, Excluded.RECENT)
        frees = run.mode is CompactionMode.FREE or board.memory.shares_pool
        freed = [r for r in residents if r.excluded in goes] if frees else []
        if run.mode is CompactionMode.MOVE:
            # Where nothing moves, everything comes back instead.
            run.names = tuple(r.model for r in freed)
        for resident in freed:
            board.free(board.extents[resident.extent])
        run.moves = board.memory.compact()
        run.moved_at = board.clock()
        board.ledger.count(compactions=1, moved_bytes=run.moves.nbytes, compaction_seconds=run.moves.seconds)
        board.ledger.decide(
            model="",
            kind="compact",
            verdict="admitted",
            needed=0,
            memory=run.before,
            residents=residents,
            evicted=[r.model for r in freed],
            moved=run.moves.nbytes,
        )
        self._reload(run)
        self._finish_if_settled()

    def _reload(self, run: _Run) -> None:
        board = self._board
        sizes = {name: model.nbytes for name in run.names if (model := board.models.get(name)) is not None}
        for name in sorted(run.names, key=lambda name: -sizes.get(name, 0)):
            model = board.models.get(name)
            if model is None:
                run.failed[name] = refusals.not_served(name)
            elif model.live is None:
                run.pending.add(name)
                board.ask(model, Purpose.RELOAD)

    def settled(self, name: str, refusal: Refusal | None) -> None:
        """A load of this model has ended."""
        run = self._run
        if run is None or name not in run.pending:
            return
        run.pending.discard(name)
        if refusal is None:
            run.reloaded.append(name)
        else:
            run.failed[name] = refusal
        self._finish_if_settled()

    def _finish_if_settled(self) -> None:
        run = self._run
        if run is None or run.moves is None or run.pending:
            return
        self._run = None
        after = self._board.memory.statistics()
        result = CompactionResult(
            reloaded=tuple(run.reloaded),
            resident_bytes=after.in_use,
            largest_free_before=run.before.largest_free,
            largest_free_after=after.largest_free,
            fragmentation_before=run.before.fragmentation,
            fragmentation_after=after.fragmentation,
            moved_bytes=run.moves.nbytes,
            seconds_until_moved=run.moved_at - run.asked,
            seconds_until_callable=self._board.clock() - run.asked,
            not_reloaded=dict(run.failed),
        )
        self._board.tell(lambda: run.done(result))
