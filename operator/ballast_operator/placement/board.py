# SPDX-License-Identifier: Apache-2.0
"""The workers of a pool while models are put on them: who has what, in order of load, and who may take one more."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ballast_operator.placement.load import Load, size
from ballast_operator.placement.model import Affinity, ModelDemand, WorkerCapacity

_RANKS: Final = tuple(Affinity)


class Board:
    """Models on workers. The answer of every method depends on what was put where, not on the order of doing it.

    Args:
        models: At most one of each name.
        workers: At most one of each name.
        previous: Workers of each model before; workers that are gone are passed over.
        everywhere: Every model that wants a copy wants one on each worker.
    """

    def __init__(
        self,
        models: Sequence[ModelDemand],
        workers: Sequence[WorkerCapacity],
        previous: Mapping[str, tuple[str, ...]],
        *,
        everywhere: bool,
    ) -> None:
        count = len(workers)
        self.models = {model.name: model for model in sorted(models, key=lambda model: model.name)}
        self.wanted = {
            model.name: 0
            if model.replicas <= 0
            else count
            if everywhere or model.all_workers
            else min(model.replicas, count)
            for model in models
        }
        capacity = sum(worker.capacity_bytes or 0 for worker in workers)
        held = sum(self.wanted[model.name] * size(model) for model in models)
        self.mean_memory = held / capacity if capacity else 0.0
        compute = sum(sorted(model.utilization for model in models if self.wanted[model.name]))
        self.loads = [
            Load(worker, index, mean_compute=compute / count, mean_memory=self.mean_memory)
            for index, worker in enumerate(sorted(workers, key=lambda worker: worker.name))
        ]
        by_name = {load.name: load.index for load in self.loads}
        self.incumbents = {
            name: sorted(by_name[worker] for worker in set(before) if worker in by_name)
            for name, before in previous.items()
        }
        self._holders: dict[str, list[int]] = {}
        self._neighbours: dict[str, list[int]] = {}
        for worker in workers:
            self._neighbours.setdefault(worker.node, []).append(by_name[worker.name])
            for model_name in worker.holds:
                self._holders.setdefault(model_name, []).append(by_name[worker.name])
        self.placed: dict[str, list[int]] = {name: [] for name in self.models}
        self._by_compute = [(0.0, 0, load.index) for load in self.loads]
        self._by_memory = [(0.0, 0, load.index) for load in self.loads]
        self._roomiest = max((load.capacity or 0 for load in self.loads), default=0)
        self._least_compute_unit = min((load.compute_unit for load in self.loads), default=0.0)
        self._least_memory_unit = min((load.memory_unit for load in self.loads), default=0.0)
        largest = max(
            (
                max(self.share(model) * self._least_compute_unit, size(model) * self._least_memory_unit)
                for model in models
                if self.wanted[model.name]
            ),
            default=0.0,
        )
        even = compute / count * self._least_compute_unit
        self.least_peak = max(largest, even, min(1.0, self.mean_memory))
        """A bound below the score of the most loaded worker with everything placed: an even spread, or the largest copy."""
        self._alike = len({load.capacity for load in self.loads}) <= 1
        self._unlimited = any(load.capacity is None for load in self.loads)

    def share(self, model: ModelDemand) -> float:
        """Compute that each copy brings when every wanted one has a worker."""
        return model.utilization / max(1, self.wanted[model.name])

    def lacking(self, model: ModelDemand) -> int:
        """Copies that have no worker."""
        return self.wanted[model.name] - len(self.placed[model.name])

    def least_loaded(self, *, memory: bool) -> Iterator[Load]:
        """Workers from the one with the least memory in use on, or with the least compute. Nothing may change meanwhile."""
        return (self.loads[index] for *_, index in (self._by_memory if memory else self._by_compute))

    def most_loaded(self) -> list[Load]:
        """Workers from the one with the highest score on, as they are now."""
        return sorted(self.loads, key=lambda load: (-load.score, load.index))

    def put(self, model: ModelDemand, load: Load, share: float) -> None:
        """Put a copy on a worker that has none."""
        self._leave_orders(load)
        load.add(model, share)
        self._join_orders(load)
        insort(self.placed[model.name], load.index)

    def take(self, model: ModelDemand, load: Load) -> None:
        """Take the copy off a worker."""
        self._leave_orders(load)
        load.remove(model)
        self._join_orders(load)
        self.placed[model.name].remove(load.index)
        self._roomiest = max(self._roomiest, (load.capacity or 0) - load.held)

    def _leave_orders(self, load: Load) -> None:
        for order, key in ((self._by_compute, load.by_compute), (self._by_memory, load.by_memory)):
            del order[bisect_left(order, key)]

    def _join_orders(self, load: Load) -> None:
        for order, key in ((self._by_compute, load.by_compute), (self._by_memory, load.by_memory)):
            insort(order, key)

    def choose(self, model: ModelDemand, *, tolerance: float, whole: bool) -> Load | None:
        """The worker for one more copy: a cheap one within the tolerance of the best score, else the best.

        The best is found by walking the orders of both loads at once, until no worker that was not met can be better
        (the threshold algorithm of R. Fagin, A. Lotem and M. Naor, Optimal aggregation algorithms for middleware, 2003).

        Args:
            model: The model.
            tolerance: By what factor a cheap worker's score may be higher; cheap is one that serves or holds the model.
            whole: Only workers on which everything would still be on the device at once.
        """
        nbytes, share = size(model), self.share(model)
        if whole and not self._unlimited and nbytes > self._roomiest:
            return None
        here = self.placed[model.name]

        def possible(load: Load) -> bool:
            return load.index not in here and (load.fits(model) if whole else load.feasible(model))

        least_compute, least_memory = share * self._least_compute_unit, nbytes * self._least_memory_unit
        best: tuple[float, int, int] | None = None
        for by_compute, by_memory in zip(self._by_compute, self._by_memory, strict=True):
            if best is not None and best[0] <= max(by_compute[0] + least_compute, by_memory[0] + least_memory):
                break
            if whole and self._alike and not self.loads[by_memory[2]].fits(model):
                break  # all that follow are at least as full
            for load in (self.loads[by_compute[2]], self.loads[by_memory[2]]):
                score = load.with_change(share, nbytes)
                if best is not None and score > best[0]:
                    continue
                if possible(load):
                    key = (score, load.unweighed, load.index)
                    best = key if best is None else min(best, key)
        if best is None:
            if whole:
                self._roomiest = max(((load.capacity or 0) - load.held for load in self.loads), default=0)
            return None
        limit = best[0] * tolerance
        cheap = [
            (rank, score, index)
            for index, rank in self.ranks(model.name).items()
            if possible(self.loads[index]) and (score := self.loads[index].with_change(share, nbytes)) <= limit
        ]
        return self.loads[min(cheap)[2] if cheap else best[2]]

    def ranks(self, model: str) -> dict[int, int]:
        """Workers that are a cheap choice for a model, by index, with the place of their affinity."""
        ranks: dict[int, int] = {}
        holders = self._holders.get(model, ())
        for holder in holders:
            if self.loads[holder].node:
                ranks.update(
                    dict.fromkeys(self._neighbours[self.loads[holder].node], _RANKS.index(Affinity.NODE_HOLDS))
                )
        ranks.update(dict.fromkeys(holders, _RANKS.index(Affinity.HOLDS)))
        ranks.update(dict.fromkeys(self.incumbents.get(model, ()), _RANKS.index(Affinity.SERVES)))
        return ranks

    def affinity(self, model: str, load: Load) -> Affinity:
        """What makes a worker a cheap choice for a model."""
        return _RANKS[self.ranks(model).get(load.index, -1)]

    def assignments(self) -> dict[str, tuple[str, ...]]:
        """Workers by model, sorted by name; models without any left out."""
        return {name: tuple(self.loads[index].name for index in here) for name, here in self.placed.items() if here}
