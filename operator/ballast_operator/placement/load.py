# SPDX-License-Identifier: Apache-2.0
"""A worker while models are put on it: what it has, what one more or one less model makes of it, and what it lacks."""

from __future__ import annotations

from typing import Final

from ballast_contract import quantities
from ballast_operator.placement.model import ModelDemand, WorkerCapacity, WorkerLoad

DIGITS: Final = 9
"""Loads are compared after rounding, so that float residue breaks no ties."""


class Load:
    """Running sums of one worker. Bytes; compute in device seconds per second.

    A score is the larger of compute and memory, each in units of the board's.

    Args:
        worker: The worker.
        index: Its place among the workers by name; breaks ties.
        compute_unit: What one device second per second counts.
        memory_unit: What the whole capacity counts; 0.0 leaves memory out.
    """

    __slots__ = (
        "capacity",
        "code",
        "compute",
        "compute_unit",
        "held",
        "index",
        "largest",
        "memory_unit",
        "models",
        "name",
        "node",
        "pinned",
        "score",
    )

    def __init__(self, worker: WorkerCapacity, index: int, *, compute_unit: float, memory_unit: float) -> None:
        self.name = worker.name
        self.node = worker.node
        self.index = index
        self.capacity = worker.capacity_bytes if worker.capacity_bytes and worker.capacity_bytes > 0 else None
        self.compute_unit = compute_unit
        self.memory_unit = 0.0 if self.capacity is None else memory_unit / self.capacity
        self.compute = 0.0
        self.pinned = 0
        self.largest = 0
        self.code = 0
        self.held = 0
        self.score = 0.0
        self.models: dict[str, tuple[ModelDemand, float]] = {}
        """What is here, by name, with the compute that each brings."""

    def needed(self, model: ModelDemand, *, without: ModelDemand | None = None) -> int:
        """Bytes that have to be on the device at once with the model here, and another one not."""
        fixed, largest = self.pinned + self.code + model.code_bytes, self.largest
        if without is not None:
            fixed -= without.code_bytes + (without.weights_bytes if without.pinned else 0)
            if not without.pinned and without.weights_bytes == largest:
                largest = self._largest(without.name)
        if model.pinned:
            return fixed + model.weights_bytes + largest
        return fixed + max(largest, model.weights_bytes)

    def feasible(self, model: ModelDemand, *, without: ModelDemand | None = None) -> bool:
        """Whether the model can be served here at all, once another one is gone."""
        return self.capacity is None or self.needed(model, without=without) <= self.capacity

    def fits(self, model: ModelDemand) -> bool:
        """Whether everything would be on the device at once with the model here."""
        return not self.overflows(size(model))

    @property
    def crowded(self) -> bool:
        """Whether what is here does not fit on the device at once."""
        return self.overflows(0)

    def overflows(self, held: int) -> bool:
        """Whether what is here would not fit on the device at once with so many more bytes."""
        return self.capacity is not None and self.held + held > self.capacity

    def with_change(self, compute: float, held: int) -> float:
        """The score with so much more compute and so many more bytes; either may be negative."""
        by_compute, by_memory = (self.compute + compute) * self.compute_unit, (self.held + held) * self.memory_unit
        return round(max(by_compute, by_memory), DIGITS)

    @property
    def memory_bound(self) -> bool:
        """Whether memory makes the score."""
        return self.held * self.memory_unit > self.compute * self.compute_unit

    @property
    def by_compute(self) -> tuple[float, float, int]:
        """The key by which workers are ordered by compute."""
        return round(self.compute * self.compute_unit, DIGITS), 0.0, self.index

    @property
    def by_memory(self) -> tuple[float, float, int]:
        """The key by which workers are ordered by memory in use."""
        return round(self.held * self.memory_unit, DIGITS), self.unweighed, self.index

    @property
    def unweighed(self) -> float:
        """Memory that is here and counts in no score: less breaks a tie."""
        return 0.0 if self.memory_unit else self.held / (self.capacity or 1)

    def missing(self, model: ModelDemand) -> int:
        """Bytes that lack for the model to be served here; negative where there is room."""
        return self.needed(model) - (self.capacity or 0)

    def add(self, model: ModelDemand, share: float) -> None:
        """Put the model here."""
        self.models[model.name] = model, share
        self.compute += share
        self.code += model.code_bytes
        self.held += model.code_bytes + model.weights_bytes
        if model.pinned:
            self.pinned += model.weights_bytes
        else:
            self.largest = max(self.largest, model.weights_bytes)
        self.score = self.with_change(0.0, 0)

    def remove(self, model: ModelDemand) -> None:
        """Take the model away."""
        _, share = self.models.pop(model.name)
        self.compute -= share
        self.code -= model.code_bytes
        self.held -= model.code_bytes + model.weights_bytes
        if model.pinned:
            self.pinned -= model.weights_bytes
        elif model.weights_bytes == self.largest:
            self.largest = self._largest()
        self.score = self.with_change(0.0, 0)

    def _largest(self, without: str = "") -> int:
        here = (model for model, _ in self.models.values() if not model.pinned and model.name != without)
        return max((model.weights_bytes for model in here), default=0)

    def report(self) -> WorkerLoad:
        """The sums as an answer."""
        return WorkerLoad(
            capacity_bytes=self.capacity,
            score=self.score,
            compute=self.compute,
            pinned_bytes=self.pinned,
            swapped_bytes=self.held - self.pinned - self.code,
            code_bytes=self.code,
            models=len(self.models),
        )


def size(model: ModelDemand) -> int:
    """Bytes of one copy: weights and code."""
    return model.weights_bytes + model.code_bytes


def crowding(model: ModelDemand, load: Load) -> str:
    """That a model is swapped on a worker, because not all of its models fit at once."""
    return (
        f"{model.called} is swapped on '{load.name}', where {quantities.human(load.held)} of weights and code "
        f"share {quantities.human(load.capacity or 0)} of device memory"
    )


def shortage(model: ModelDemand, loads: list[Load], *, placed: int, wanted: int) -> str:
    """That copies of a model find no room, and what would make some."""
    load = min(loads, key=lambda load: (load.missing(model), load.name))
    human = quantities.human
    beside = [
        f"{human(nbytes)} of {what}"
        for nbytes, what in ((load.pinned, "pinned weights"), (load.code, "code"), (load.largest, "a swapped model"))
        if nbytes
    ]
    return (
        f"{placed} of {wanted} copies have a worker: {model.called} needs {human(model.weights_bytes)} of device memory for "
        f"weights"
        + (f" and {human(model.code_bytes)} for code" if model.code_bytes else "")
        + f"; '{load.name}', the worker "
        f"with the most room, has {human(load.capacity or 0)} in all"
        + (f", and on it {', '.join(beside)}" if beside else "")
        + f": raise device.budget of the WeightBudget by at least {quantities.ceil_api(max(1, load.missing(model)))}"
        + (", pin less" if load.pinned else "")
        + ", or add workers with more memory"
    )
