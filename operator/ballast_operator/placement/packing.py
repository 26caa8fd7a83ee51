# SPDX-License-Identifier: Apache-2.0
"""Models to workers: the longest processing time first rule, with memory beside compute and with incumbents.

Longest processing time first is Graham's greedy bound for makespan (R. L. Graham, Bounds on multiprocessing timing anomalies,
SIAM J. Appl. Math. 17, 1969): the model that needs most goes next, to the worker that it loads least. Here the load is the
larger of compute and memory, and a worker that already serves the model keeps it unless another is better by more than the
hysteresis. A pack of its own result changes nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from ballast_contract.reasons import Reason
from ballast_operator.placement.load import Load, crowding, shortage
from ballast_operator.placement.model import Affinity, Candidate, ModelDemand, ModelPlacement, Packing, WorkerCapacity

RUNNERS_UP: Final = 3
"""Workers that were not chosen and are kept in an answer's candidates."""

_RANKS: Final = tuple(Affinity)
_Scored = tuple[float, int, int]
"""Score and index of a worker; workers are sorted by name, so the index breaks ties as the name would."""


def pack(
    models: Sequence[ModelDemand],
    workers: Sequence[WorkerCapacity],
    previous: Mapping[str, tuple[str, ...]],
    *,
    hysteresis_percent: int = 10,
    mode: Literal["packed", "all"] = "packed",
    settled: bool = False,
) -> Packing:
    """Assign models to workers; the answer depends on nothing but the arguments, in any order.

    A worker is feasible for a model when pinned weights, code and the largest swapped model fit together; nothing is placed
    elsewhere. Among the feasible ones those that can hold everything at once come first; models for which there are too few
    of these are placed last and marked oversubscribed. Models that need much room of their own go before the others, the
    largest first: pinned ones, and those larger than half the largest worker. The others follow by utilization.

    Args:
        models: At most one of each name.
        workers: At most one of each name; only those that can take models.
        previous: Workers of each model before; workers that are gone are passed over.
        hysteresis_percent: By how much another worker must be better before a model leaves one that serves or holds it.
        mode: `all` puts every model with at least one replica on every worker.
        settled: Models that have all their copies stay; only the others are placed. For a new model between two repacks.
    """
    attempt = _Attempt(workers, previous, hysteresis_percent=hysteresis_percent, everywhere=mode == "all")
    attempt.run(sorted(models, key=_order(workers)), settled=settled)
    return attempt.result()


def _order(workers: Sequence[WorkerCapacity]) -> Callable[[ModelDemand], tuple[float | str, ...]]:
    half = max((worker.capacity_bytes or 0 for worker in workers), default=0) / 2 or math.inf

    def key(model: ModelDemand) -> tuple[float | str, ...]:
        if model.pinned or model.weights_bytes + model.code_bytes > half:
            return (0, -model.weights_bytes, -model.utilization, model.name)
        return (1, -model.utilization, -model.weights_bytes, model.name)

    return key


class _Attempt:
    """One pass over the models in one order."""

    def __init__(
        self,
        workers: Sequence[WorkerCapacity],
        previous: Mapping[str, tuple[str, ...]],
        *,
        hysteresis_percent: int,
        everywhere: bool,
    ) -> None:
        self._loads = [Load(worker, index) for index, worker in enumerate(sorted(workers, key=lambda w: w.name))]
        self._by_name = {load.name: load for load in self._loads}
        self._previous = previous
        self._tolerance = 1 + hysteresis_percent / 100
        self._everywhere = everywhere
        self._placements: dict[str, ModelPlacement] = {}
        self._holders: dict[str, list[Load]] = {}
        self._neighbours: dict[str, list[Load]] = {}
        for worker in workers:
            load = self._by_name[worker.name]
            self._neighbours.setdefault(load.node, []).append(load)
            for model in worker.holds:
                self._holders.setdefault(model, []).append(load)

    def run(self, ordered: Iterable[ModelDemand], *, settled: bool) -> None:
        waiting = list(ordered)
        if settled:
            waiting = [model for model in waiting if not self._keep(model)]
        for model in [model for model in waiting if not self._place(model, must_fit=True)]:
            self._place(model, must_fit=False)

    def result(self) -> Packing:
        placements = dict(sorted(self._placements.items()))
        now = {name: set(placement.workers) for name, placement in placements.items() if placement.workers}
        before = {name: set(workers) for name, workers in self._previous.items() if workers}
        differing = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        changed = {worker for name in differing for worker in now.get(name, set()) ^ before.get(name, set())}
        return Packing(
            placements=placements,
            loads={load.name: load.report() for load in self._loads},
            moved=tuple(sorted(differing & now.keys() & before.keys())),
            changed_workers=tuple(sorted(changed)),
        )

    def _wanted(self, model: ModelDemand) -> int:
        if model.replicas <= 0:
            return 0
        everywhere = self._everywhere or model.all_workers
        return len(self._loads) if everywhere else min(model.replicas, len(self._loads))

    def _keep(self, model: ModelDemand) -> bool:
        """Leave a model where it is; False when it lacks a copy, has one too many, or does not fit any more."""
        chosen = [self._by_name[name] for name in self._previous.get(model.name, ()) if name in self._by_name]
        wanted = self._wanted(model)
        if not chosen or len(chosen) != wanted or not all(load.feasible(model) for load in chosen):
            return False
        self._settle(model, chosen, [], wanted)
        return True

    def _place(self, model: ModelDemand, *, must_fit: bool) -> bool:
        """Put a model on its workers, or refuse it; False when it is to wait for those that fit."""
        wanted = self._wanted(model)
        if wanted == 0:
            self._placements[model.name] = _nothing(model)
            return True
        fitting = [load for load in self._loads if load.fits(model)]
        if len(fitting) < wanted and must_fit:
            return False
        crowded = (
            [load for load in self._loads if not load.fits(model) and load.feasible(model)]
            if len(fitting) < wanted
            else []
        )
        count = min(wanted, len(fitting) + len(crowded))
        share = model.utilization / max(1, count)
        chosen, others = self._best(model, fitting, count, share=share)
        if len(chosen) < count:
            more, others = self._best(model, crowded, count - len(chosen), share=share)
            chosen += more
        self._settle(model, chosen, others if count else self._loads[:RUNNERS_UP], wanted)
        return True

    def _best(
        self, model: ModelDemand, loads: list[Load], count: int, *, share: float
    ) -> tuple[list[Load], list[Load]]:
        """Up to `count` workers, one by one: an incumbent within the tolerance of the best score, else the best score.

        Returns:
            The chosen, and the best of the others.
        """
        scored: list[_Scored] = [(load.score(model, share), load.unweighed, load.index) for load in loads]
        ranks = self._ranks(model.name)
        incumbents = (
            sorted((ranks[index], score, index) for score, _, index in scored if index in ranks) if ranks else []
        )
        heapq.heapify(scored)
        chosen: dict[int, None] = {}
        while scored and len(chosen) < count:
            score, _, best = scored[0]
            if best in chosen:
                heapq.heappop(scored)
                continue
            limit = score * self._tolerance
            near = (index for _, score, index in incumbents if score <= limit and index not in chosen)
            chosen[next(near, best)] = None
        others = [index for _, _, index in heapq.nsmallest(RUNNERS_UP + len(chosen), scored) if index not in chosen]
        return [self._loads[index] for index in chosen], [self._loads[index] for index in others[:RUNNERS_UP]]

    def _ranks(self, model: str) -> dict[int, int]:
        """Workers that are a cheap choice for a model, by index, with the place of their affinity."""
        ranks: dict[int, int] = {}
        holders = self._holders.get(model, ())
        for load in (near for holder in holders if holder.node for near in self._neighbours[holder.node]):
            ranks[load.index] = _RANKS.index(Affinity.NODE_HOLDS)
        for load in holders:
            ranks[load.index] = _RANKS.index(Affinity.HOLDS)
        for name in self._previous.get(model, ()):
            if name in self._by_name:
                ranks[self._by_name[name].index] = _RANKS.index(Affinity.SERVES)
        return ranks

    def _settle(self, model: ModelDemand, chosen: list[Load], others: list[Load], wanted: int) -> None:
        """Record a placement with what led to it, then count the model on its workers."""
        share = model.utilization / len(chosen) if chosen else 0.0
        missing = wanted - len(chosen)
        crowded = next((load for load in chosen if not load.fits(model)), None)
        if missing:
            message = shortage(model, self._infeasible(model), placed=len(chosen), wanted=wanted)
        else:
            message = crowding(model, crowded) if crowded else ""
        ranks = self._ranks(model.name)
        self._placements[model.name] = ModelPlacement(
            workers=tuple(sorted(load.name for load in chosen)),
            wanted=wanted,
            share=share,
            oversubscribed=crowded is not None,
            reason=Reason.INSUFFICIENT_DEVICE_MEMORY if missing else None,
            message=message,
            candidates=tuple(
                Candidate(
                    worker=load.name,
                    score=load.score(model, share),
                    compute=load.compute + share,
                    memory=load.memory(model),
                    fits=load.fits(model),
                    feasible=load.feasible(model),
                    affinity=_RANKS[ranks.get(load.index, -1)],
                    chosen=number < len(chosen),
                )
                for number, load in enumerate((*chosen, *others))
            ),
        )
        for load in chosen:
            load.add(model, share)

    def _infeasible(self, model: ModelDemand) -> list[Load]:
        return [load for load in self._loads if not load.feasible(model)]


def _nothing(model: ModelDemand) -> ModelPlacement:
    if model.replicas <= 0:
        return ModelPlacement(workers=(), wanted=0)
    return ModelPlacement(
        workers=(),
        wanted=0,
        reason=Reason.WORKERS_STARTING,
        message=f"{model.called} waits: the pool has no worker that can take models",
    )
