# SPDX-License-Identifier: Apache-2.0
"""A pool under a trace of arrivals: the functions that place models in the cluster, driven by a clock of the trace's own.

What is simulated: which worker a call goes to, which weights are on its device, and when models are placed anew. A worker
keeps what was used last. Calls take their device time at once: queues and deadlines are left out, so a load above 1.0 says
that a worker cannot keep up. Pure.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ballast_operator.placement.cadence import repack_due
from ballast_operator.placement.demand import Counters, Demand, fold
from ballast_operator.placement.model import Assignments, ModelDemand, MovePrice, WorkerCapacity
from ballast_operator.placement.packing import pack

WINDOW_SECONDS: Final = 60.0
"""Loads are averaged over so long before the busiest worker is looked for."""

Policy = Callable[[Sequence[ModelDemand], Sequence[WorkerCapacity], Assignments, MovePrice], Assignments]
"""Models, workers, workers by model before, price of a move: workers by model."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Calls of one model at one moment: seconds since the trace began, device seconds of each call."""

    seconds: float
    model: str
    compute_seconds: float
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Rules:
    """How the pool is run. Rates in bytes per second, half-life and cadence in device seconds of all workers."""

    link_bytes_per_second: float
    first_after_compute_seconds: int = 60
    every_compute_seconds: int = 300


@dataclass(slots=True)
class Outcome:
    """What came of a trace.

    Args:
        max_load: Device seconds per second of the busiest worker, mean over windows of a minute.
        spread: Standard deviation of the workers' loads over their mean, mean over the windows with any load.
        moves: Copies that a repack brought to a worker that did not serve them.
        reloads: Loads that a call waited for.
        refused: Calls of models that no worker can take, by model.
        loads: Mean load of each worker over the trace.
    """

    requests: int = 0
    seconds: float = 0.0
    repacks: int = 0
    moves: int = 0
    bytes_moved: int = 0
    reloads: int = 0
    reload_seconds: float = 0.0
    max_load: float = 0.0
    spread: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    loads: dict[str, float] = field(default_factory=dict)


class _Device:
    """What is on one worker's device: pinned weights and code always, of the rest what was used last."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._fixed = 0
        self._used = 0
        self._resident: OrderedDict[str, int] = OrderedDict()

    def assign(self, models: Iterable[ModelDemand]) -> None:
        """Serve these models from now on; what is resident of them stays."""
        here = list(models)
        self._fixed = sum(m.code_bytes + (m.weights_bytes if m.pinned else 0) for m in here)
        staying = {m.name for m in here if not m.pinned}
        self._resident = OrderedDict((name, size) for name, size in self._resident.items() if name in staying)
        self._used = sum(self._resident.values())
        self._shrink(0)

    def use(self, model: ModelDemand) -> bool:
        """Bring the model to the device, if it is not there; returns whether it had to be loaded."""
        if model.pinned:
            return False
        if model.name in self._resident:
            self._resident.move_to_end(model.name)
            return False
        self._shrink(model.weights_bytes)
        self._resident[model.name] = model.weights_bytes
        self._used += model.weights_bytes
        return True

    def _shrink(self, coming: int) -> None:
        while self._capacity is not None and self._resident and self._fixed + self._used + coming > self._capacity:
            self._used -= self._resident.popitem(last=False)[1]


class Simulation:
    """One run of one policy.

    Args:
        models: What is served; their utilization is learnt from the trace.
        workers: The pool.
        rules: How it is run.
        policy: Who goes where; the operator's own rule where left out.
    """

    def __init__(
        self,
        models: Sequence[ModelDemand],
        workers: Sequence[WorkerCapacity],
        rules: Rules,
        policy: Policy | None = None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._workers = workers
        self._rules = rules
        self._policy = policy or _pack
        self._devices = {worker.name: _Device(worker.capacity_bytes) for worker in workers}
        self._where: Assignments = {}
        self._demand: dict[str, Demand] = {}
        self._counted: dict[str, Counters] = {}
        self._folded_at = self._spent = 0.0
        self._first_done = False
        self._window = 0
        self._busy = dict.fromkeys(self._devices, 0.0)
        self._total = dict.fromkeys(self._devices, 0.0)
        self._peaks: list[float] = []
        self._spreads: list[float] = []
        self.outcome = Outcome()

    def run(self, trace: Iterable[Arrival]) -> Outcome:
        """Play a trace, in order of time, to its end."""
        self._place(MovePrice())
        at = 0.0
        for arrival in trace:
            at = arrival.seconds
            while at >= (self._window + 1) * WINDOW_SECONDS:
                self._close_window(WINDOW_SECONDS)
            self._serve(arrival)
            due = repack_due(
                self._spent,
                first_done=self._first_done,
                first_after=self._rules.first_after_compute_seconds,
                every=self._rules.every_compute_seconds,
            )
            if due:
                self._repack(at)
        if at > self._window * WINDOW_SECONDS:
            self._close_window(at - self._window * WINDOW_SECONDS)
        outcome = self.outcome
        outcome.seconds = at
        outcome.max_load = statistics.fmean(self._peaks) if self._peaks else 0.0
        outcome.spread = statistics.fmean(self._spreads) if self._spreads else 0.0
        outcome.loads = {name: busy / at if at else 0.0 for name, busy in self._total.items()}
        return outcome

    def _serve(self, arrival: Arrival) -> None:
        outcome, spent = self.outcome, arrival.compute_seconds * arrival.requests
        outcome.requests += arrival.requests
        chosen = self._where.get(arrival.model, ())
        if not chosen:
            outcome.refused[arrival.model] += arrival.requests
            return
        worker = min(chosen, key=lambda name: (self._busy[name], name))
        model = self._models[arrival.model]
        if self._devices[worker].use(model):
            outcome.reloads += 1
            outcome.reload_seconds += model.weights_bytes / self._rules.link_bytes_per_second
        self._busy[worker] += spent
        self._total[worker] += spent
        self._spent += spent
        seen = self._counted.get(arrival.model, Counters(0, 0.0))
        self._counted[arrival.model] = Counters(seen.requests + arrival.requests, seen.compute_seconds + spent)

    def _repack(self, at: float) -> None:
        self._first_done, self._spent = True, 0.0
        self._demand = fold(
            self._demand,
            {name: self._counted.get(name, Counters(0, 0.0)) for name in self._models},
            elapsed_seconds=at - self._folded_at,
            half_life_compute_seconds=float(self._rules.every_compute_seconds),
        )
        self._counted, self._folded_at = {}, at
        needed = sum(demand.utilization for demand in self._demand.values())
        rate = self._rules.link_bytes_per_second
        horizon = self._rules.every_compute_seconds / needed if needed else float("inf")
        self.outcome.repacks += 1
        self._place(MovePrice(warm_bytes_per_second=rate, horizon_seconds=horizon))

    def _place(self, price: MovePrice) -> None:
        demands = [_with_demand(model, self._demand.get(name)) for name, model in self._models.items()]
        before, self._where = self._where, self._policy(demands, self._workers, self._where, price)
        here: dict[str, list[ModelDemand]] = {name: [] for name in self._devices}
        for name, workers in self._where.items():
            for worker in workers:
                here[worker].append(self._models[name])
        for worker, models in here.items():
            self._devices[worker].assign(models)
        for name, workers in self._where.items():
            for worker in workers if name in before else ():
                if worker not in before[name]:
                    self.outcome.moves += 1
                    self.outcome.bytes_moved += self._models[name].weights_bytes
                    self._devices[worker].use(self._models[name])

    def _close_window(self, seconds: float) -> None:
        loads = [busy / seconds for busy in self._busy.values()]
        self._peaks.append(max(loads))
        if any(loads):
            self._spreads.append(statistics.pstdev(loads) / statistics.fmean(loads))
        self._busy = dict.fromkeys(self._busy, 0.0)
        self._window += 1


def operators_rule(*, hysteresis_percent: int = 10, everywhere: bool = False) -> Policy:
    """The rule of the operator with the options of a WeightBudget."""

    def policy(
        models: Sequence[ModelDemand], workers: Sequence[WorkerCapacity], before: Assignments, price: MovePrice
    ) -> Assignments:
        return pack(
            models,
            workers,
            before,
            hysteresis_percent=hysteresis_percent,
            everywhere=everywhere,
            price=price,
        ).assignments

    return policy


_pack: Final = operators_rule()


def _with_demand(model: ModelDemand, demand: Demand | None) -> ModelDemand:
    return model if demand is None else dataclasses.replace(model, utilization=demand.utilization, rate=demand.rate)
