# SPDX-License-Identifier: Apache-2.0
"""The workers of a pool while models are put on them: who has what, in order of load, and who may take one more."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final

from ballast_operator.placement.load import DIGITS, Load, size
from ballast_operator.placement.model import Affinity, Assignments, ModelDemand, WorkerCapacity, by_demand

_RANKS: Final = tuple(Affinity)

_RESIDUE: Final = 10**-DIGITS

_IDLE: Final = 0.1
"""Mean device seconds per second below which differences in compute count less and less."""

_MOST_WORKERS: Final = 24
_MOST_COPIES: Final = 1000
"""Of a pool up to which reloads are estimated: the search for fewer looks at every pair of workers."""


class Board:
    """Models on workers. The answer of every method depends on what was put where, not on the order of doing it.

    What a score counts: memory as a share of the capacity and compute as a share of one device, where everything might fit.
    In a pool whose models cannot all fit at once bytes are no load of their own. Where the calls are known, what they have to
    wait for is (`swapping`), and scores leave memory out; where not, memory is a multiple of an even spread, because memory
    that is full on every worker would hide everything else. Then compute is a multiple of an even spread too, and so it is
    where the pool is asked for more than it has.

    Args:
        models: At most one of each name.
        workers: At most one of each name.
        previous: Workers of each model before; workers that are gone are passed over.
        everywhere: Every model that wants a copy wants one on each worker.
        plain: As the plain rule counts: scores are always shares of a device and of its memory, and of equal workers the
            first by name is chosen, which takes a look at all of them.
    """

    def __init__(
        self,
        models: Sequence[ModelDemand],
        workers: Sequence[WorkerCapacity],
        previous: Assignments,
        *,
        everywhere: bool,
        plain: bool = False,
    ) -> None:
        count = len(workers)
        self._plain = plain
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
        called = any(model.rate and self.wanted[model.name] for model in models)
        small = count <= _MOST_WORKERS and sum(self.wanted.values()) <= _MOST_COPIES
        self.swapping = self.mean_memory > 1 and called and small
        """The pool's models take turns on the devices, and how often is known."""
        compute_unit = memory_unit = 1.0
        if not plain:
            compute_unit = 1 / max(compute / count, 1.0 if self.mean_memory <= 1 else _IDLE)
            memory_unit = 0.0 if self.swapping else 1 / max(1.0, self.mean_memory)
        self.loads = [
            Load(worker, index, compute_unit=compute_unit, memory_unit=memory_unit)
            for index, worker in enumerate(sorted(workers, key=lambda worker: worker.name))
        ]
        self._by_name = by_name = {load.name: load.index for load in self.loads}
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
        self._by_compute = [(0.0, 0.0, load.index) for load in self.loads]
        self._by_memory = [(0.0, 0.0, load.index) for load in self.loads]
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
        self._unlimited = any(load.capacity is None for load in self.loads)
        self.least_peak = max(largest, even, 0.0 if self._unlimited else memory_unit * self.mean_memory)
        """A bound below the score of the most loaded worker with everything placed: an even spread, or the largest copy."""
        self._alike = len({load.capacity for load in self.loads}) <= 1

    def share(self, model: ModelDemand) -> float:
        """Compute that each copy brings when every wanted one has a worker."""
        return model.utilization / max(1, self.wanted[model.name])

    def calls(self, model: ModelDemand) -> float:
        """Calls per second of each copy."""
        return model.rate / max(1, len(self.placed[model.name]))

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
        best: tuple[float, float, int] | None = None
        enough = math.inf
        loads, residue = self.loads, _RESIDUE if self._plain else 0.0
        full = (loads[0].capacity or math.inf) - nbytes if whole and self._alike else math.inf
        for (compute, _, one), (memory, _, other) in zip(self._by_compute, self._by_memory, strict=True):
            if enough <= max(compute + least_compute, memory + least_memory) - residue:
                break
            if loads[other].held > full:
                break  # all that follow are at least as full
            for load in (loads[one], loads[other]):
                score = load.with_change(share, nbytes)
                if score <= enough and possible(load):
                    key = (score, load.unweighed, load.index)
                    best = key if best is None else min(best, key)
                    enough = best[0]
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

    @property
    def peak(self) -> float:
        """The score of the most loaded worker."""
        return max(load.score for load in self.loads)

    def keep(self) -> None:
        """Leave every copy where it was, as far as it may stay there; of too many those on the first workers."""
        for model in sorted(self.models.values(), key=lambda model: (not model.pinned, *by_demand(model))):
            share = self.share(model)
            for index in self.incumbents.get(model.name, ())[: self.wanted[model.name]]:
                if self.loads[index].feasible(model):
                    self.put(model, self.loads[index], share)

    def put_all(self, assignments: Assignments) -> None:
        """Put copies where an assignment has them."""
        for name, workers in assignments.items():
            for worker in workers:
                self.put(self.models[name], self.loads[self._by_name[worker]], self.share(self.models[name]))

    def share_out(self) -> None:
        """The copies that there are bear what the missing ones would."""
        for name, here in self.placed.items():
            model = self.models[name]
            for load in [self.loads[index] for index in here]:
                if load.models[name][1] != (share := model.utilization / len(here)):
                    self.take(model, load)
                    self.put(model, load, share)

    def assignments(self) -> dict[str, tuple[str, ...]]:
        """Workers by model, sorted by name; models without any left out."""
        return {name: tuple(self.loads[index].name for index in here) for name, here in self.placed.items() if here}
