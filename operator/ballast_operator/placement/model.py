# SPDX-License-Identifier: Apache-2.0
"""What placement reads and answers: models with their demand, workers with their capacity, and who goes where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ballast_contract.reasons import Reason

Assignments = Mapping[str, tuple[str, ...]]
"""Workers by model."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """One model to place.

    Args:
        name: Key of the model, unique in the pool.
        weights_bytes: Packed weights, paid in full by every copy.
        code_bytes: Device memory of its executables, paid by every copy; 0 while not measured.
        utilization: Device seconds that it needs per second, over all its copies; a worker has 1.0.
        rate: Calls per second, over all its copies.
        pinned: Its weights stay on the device (residency `device`).
        replicas: Copies wanted; more than there are workers means one on each.
        all_workers: A copy on every worker, whatever `replicas` says above 0.
        title: What messages call it; the key where left out.
    """

    name: str
    weights_bytes: int
    code_bytes: int = 0
    utilization: float = 0.0
    rate: float = 0.0
    pinned: bool = False
    replicas: int = 1
    all_workers: bool = False
    title: str = ""

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.title or self.name


def by_demand(model: ModelDemand) -> tuple[float, float, str]:
    """The order of the plain rule: falling utilization, falling bytes, name."""
    return -model.utilization, -model.weights_bytes, model.name


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """One worker that can take models.

    Args:
        name: Key of the worker, unique in the pool.
        node: Its node; empty where not known.
        capacity_bytes: Device memory for weights and code together (budget less context, scratch and slack); None while
            not known, which leaves memory out of the decision.
        holds: Models of which it has a copy of the weights, on the device or in host memory that its node shares.
    """

    name: str
    node: str = ""
    capacity_bytes: int | None = None
    holds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MovePrice:
    """What it costs to bring a model to a worker, and how long a better place has to pay for it.

    Args:
        warm_bytes_per_second: Measured rate of loads from a host copy; None while not measured, which makes moves free.
        cold_bytes_per_second: Measured rate of loads that read the bundle first; None: as warm ones.
        horizon_seconds: Wall seconds until models are placed again; infinite while nobody calls.
    """

    warm_bytes_per_second: float | None = None
    cold_bytes_per_second: float | None = None
    horizon_seconds: float = math.inf

    def seconds(self, nbytes: float, *, warm: bool) -> float:
        """Seconds for which the load of so many bytes keeps a link busy."""
        rate = self.warm_bytes_per_second if warm else self.cold_bytes_per_second or self.warm_bytes_per_second
        return nbytes / rate if rate else 0.0

    def pays(self, gain: float, seconds: float) -> bool:
        """Whether so many seconds less per second make up for loads of so many seconds; where nothing is loaded they do."""
        return not seconds or gain * self.horizon_seconds >= seconds


class Affinity(StrEnum):
    """Why a worker is a cheap choice for a model, best first."""

    SERVES = "serves"
    HOLDS = "holds"
    NODE_HOLDS = "nodeHolds"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """Where one model goes.

    Args:
        workers: Sorted by name, each once; empty where it is refused or wants no copy.
        wanted: Copies wanted of the workers that there are.
        oversubscribed: A chosen worker holds more than fits on its device at once; what is not pinned there is swapped.
        reason: None when every wanted copy has a worker.
        message: With a reason what, value, limit and remedy; else that it is swapped, where it is.
    """

    workers: tuple[str, ...]
    wanted: int
    oversubscribed: bool = False
    reason: Reason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one worker has after the pack.

    Args:
        score: The larger of compute and memory, as multiples of an even spread where the pool's models cannot all fit at once;
            of compute alone where reloads are estimated.
        swapped_bytes: Weights of all models on it that are not pinned.
    """

    capacity_bytes: int | None
    score: float
    compute: float
    pinned_bytes: int
    swapped_bytes: int
    code_bytes: int
    models: int


@dataclass(frozen=True, slots=True)
class Packing:
    """An assignment of models to workers, and how it differs from the previous one.

    Args:
        moved: Models that were placed before and whose workers changed, sorted.
        changed_workers: Workers whose models changed, sorted; also workers that are gone.
    """

    placements: Mapping[str, ModelPlacement]
    loads: Mapping[str, WorkerLoad]
    moved: tuple[str, ...]
    changed_workers: tuple[str, ...]

    @property
    def assignments(self) -> dict[str, tuple[str, ...]]:
        """Workers by model, models without any left out: the `previous` of the next pack."""
        return {name: placement.workers for name, placement in self.placements.items() if placement.workers}


@dataclass(frozen=True, slots=True)
class Packed:
    """What a pool's last pack was made from, for whoever asks why."""

    models: Sequence[ModelDemand] = ()
    workers: Sequence[WorkerCapacity] = ()
    hysteresis_percent: int = 10
    everywhere: bool = False
    price: MovePrice = MovePrice()
