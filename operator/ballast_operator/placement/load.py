# SPDX-License-Identifier: Apache-2.0
"""A worker while models are put on it: what it has, what one more model would make of it, and why a model does not go there."""

from __future__ import annotations

from typing import Final

from ballast_contract import quantities
from ballast_operator.placement.model import ModelDemand, WorkerCapacity, WorkerLoad

_DIGITS: Final = 9
"""Loads are compared after rounding, so that float residue breaks no ties."""


class Load:
    """Running sums of one worker. Bytes; compute in device seconds per second."""

    __slots__ = (
        "capacity",
        "code",
        "compute",
        "held",
        "index",
        "largest",
        "models",
        "name",
        "node",
        "pinned",
        "swapped",
    )

    def __init__(self, worker: WorkerCapacity, index: int) -> None:
        self.name = worker.name
        self.node = worker.node
        self.index = index
        self.capacity = worker.capacity_bytes if worker.capacity_bytes and worker.capacity_bytes > 0 else None
        self.compute = 0.0
        self.pinned = 0
        self.swapped = 0
        self.largest = 0
        self.code = 0
        self.held = 0
        self.models = 0

    def needed(self, model: ModelDemand) -> int:
        """Bytes that have to be on the device at once with the model here."""
        fixed = self.pinned + self.code + model.code_bytes
        if model.pinned:
            return fixed + model.weights_bytes + self.largest
        return fixed + max(self.largest, model.weights_bytes)

    def total(self, model: ModelDemand) -> int:
        """Bytes of everything with the model here."""
        return self.held + model.code_bytes + model.weights_bytes

    def feasible(self, model: ModelDemand) -> bool:
        """Whether the model can be served here at all."""
        return self.capacity is None or self.needed(model) <= self.capacity

    def fits(self, model: ModelDemand) -> bool:
        """Whether everything would be on the device at once with the model here."""
        return self.capacity is None or self.held + model.code_bytes + model.weights_bytes <= self.capacity

    def memory(self, model: ModelDemand) -> float:
        """Share of the capacity that everything takes with the model here; 0.0 while the capacity is not known."""
        return self.total(model) / self.capacity if self.capacity is not None else 0.0

    def score(self, model: ModelDemand, share: float) -> float:
        """The larger of compute and memory with the model here."""
        compute = self.compute + share
        if self.capacity is None:
            return round(compute, _DIGITS)
        memory = (self.held + model.code_bytes + model.weights_bytes) / self.capacity
        return round(max(compute, memory), _DIGITS)

    @property
    def unweighed(self) -> int:
        """Bytes that are here and count in no score, because the capacity is not known: fewer break a tie."""
        return self.held if self.capacity is None else 0

    def missing(self, model: ModelDemand) -> int:
        """Bytes that lack for the model to be served here; negative where there is room."""
        return self.needed(model) - (self.capacity or 0)

    def add(self, model: ModelDemand, share: float) -> None:
        """Put the model here."""
        self.compute += share
        self.code += model.code_bytes
        self.held += model.code_bytes + model.weights_bytes
        self.models += 1
        if model.pinned:
            self.pinned += model.weights_bytes
        else:
            self.swapped += model.weights_bytes
            self.largest = max(self.largest, model.weights_bytes)

    def report(self) -> WorkerLoad:
        """The sums as an answer."""
        return WorkerLoad(
            capacity_bytes=self.capacity,
            compute=self.compute,
            pinned_bytes=self.pinned,
            swapped_bytes=self.swapped,
            largest_swapped_bytes=self.largest,
            code_bytes=self.code,
            models=self.models,
        )


def crowding(model: ModelDemand, load: Load) -> str:
    """That a model is swapped on a worker, because not all of its models fit at once."""
    return (
        f"{model.called} is swapped on '{load.name}', where {quantities.human(load.total(model))} of weights and code "
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
