# SPDX-License-Identifier: Apache-2.0
"""A worker in this process: the same parts, put together by the same code, without the control service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from ballast_contract.config import ResidencyWish, WorkerConfig
from ballast_contract.plan_lines import SLACK
from ballast_worker.control.machine import Machine
from ballast_worker.control.models import Built
from ballast_worker.control.planning import Basis, Wanted
from ballast_worker.device.budget import Budget
from ballast_worker.device.plan import Plan, make_plan, observed
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult, ModelSnapshot, ResidentModel, Tier
from ballast_worker.serving.call import Array, Call, Outcome, ServableModel
from ballast_worker.serving.catalog import Here
from ballast_worker.serving.journal import NoJournal
from benchmarks.gpu.setting import Setting

PATIENCE: Final = 60.0
"""Seconds after which a benchmark gives up on the product."""

UNSEEN_SECONDS: Final = 0.003
"""A load is not looked at for so long: looking takes the interpreter's lock from those who load."""

T = TypeVar("T")


class BenchmarkError(Exception):
    """The product refused, or did not answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One call: when it was submitted and answered, on the monotonic clock, and its refusal, if it was one."""

    submitted: float
    answered: float
    refusal: Refusal | None

    @property
    def seconds(self) -> float:
        """From submission to answer."""
        return self.answered - self.submitted


class _NoCatalog:
    """Nobody calls over the network."""

    def find(self, model: str) -> Here | None:
        """See `Catalog.find`."""
        del model
        return None

    def ready(self) -> bool:
        """See `Catalog.ready`."""
        return True


class Worker:
    """Everything that serves, on the device of the setting.

    Args:
        setting: where, and how large.
        models: which bundle is served under which name.
        built: every bundle.
        arena: bytes for weights that are not pinned.
        host: bytes of the host pool; None: it grows when it has to, while the worker serves.
        pinned: names that are always on the device.
        allocator: what places weights.

    Raises:
        BenchmarkError: the device has too little for it.
    """

    def __init__(
        self,
        setting: Setting,
        models: Mapping[str, str],
        built: Mapping[str, Built],
        *,
        arena: int,
        host: int | None,
        pinned: frozenset[str] = frozenset(),
        allocator: str = "arena",
    ) -> None:
        ports = ("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port")
        config = WorkerConfig.model_validate(
            {
                "backend": setting.backend,
                "device": {"budget": 1, "allocator": allocator},
                "host": {"budget": "unlimited" if host is None else host, "directory": setting.pool},
                "serving": {"host": "127.0.0.1", **dict.fromkeys(ports, 0)},
            }
        )
        self._built = {name: built[bundle] for name, bundle in models.items()}
        self._pinned = pinned
        self._changed = threading.Semaphore(0)
        self.machine = Machine(config)
        if self.machine.fault is not None:
            raise BenchmarkError(self.machine.fault.message)
        self.plan = self.made = self._plan(config, arena, host)
        self.parts = self.machine.reserve(
            self.plan,
            host,
            models=[self._servable(name) for name in models],
            catalog=_NoCatalog(),
            journal=NoJournal(),
            changed=self._changed.release,
        )
        for name in models:
            self.add(name)
        self._observe()

    def _observe(self) -> None:
        """As a worker does when it becomes ready."""
        used = self.machine.process_bytes(now_exactly=True)
        if used is not None:
            self.plan = observed(self.plan, used=used, code=sum(one.code_bytes for one in self._built.values()))

    def _plan(self, config: WorkerConfig, arena: int, host: int | None) -> Plan:
        """A plan that takes what is needed and keeps no slack, so that all of it can be compared with the driver's figure."""
        basis = Basis(config, self.machine.budget, self.machine.context, self.machine.overhead(host or 0))
        inputs = basis.inputs({name: Wanted(one, name in self._pinned) for name, one in self._built.items()})
        weights = arena + sum(model.weights for model in inputs.models if model.pinned)
        total = inputs.context + inputs.overhead + inputs.code + inputs.scratch + weights
        available = self.machine.budget.available
        plan = make_plan(replace(inputs, budget=Budget(total, "this benchmark", "", available), slack_percent=0))
        if not plan.fits:
            raise BenchmarkError(f"{total} bytes of device memory are needed and {available} are free")
        return plan

    @property
    def models(self) -> dict[str, ModelSnapshot]:
        """Every model now."""
        return {model.name: model for model in self.parts.residency.snapshot().models}

    def on_device(self, action: Callable[[], T]) -> T:
        """Run something on the device thread and wait for its result."""
        results: list[T] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(action())
            finally:
                done.set()

        self.parts.engine.post(run)
        _wait(done, "an action on the device thread")
        return results[0]

    def add(self, name: str) -> None:
        """Serve a model; a pinned one is loaded."""
        done = threading.Event()
        refusals: list[Refusal] = []

        def added(refusal: Refusal | None) -> None:
            refusals.extend([refusal] if refusal is not None else [])
            done.set()

        self.parts.engine.add(self._servable(name), added)
        _wait(done, f"adding {name}")
        if refusals:
            raise BenchmarkError(refusals[0].message)
        if name in self._pinned:
            self._until_loaded(name)

    def _servable(self, name: str) -> ServableModel:
        built = self._built[name]
        wish = ResidencyWish.DEVICE if name in self._pinned else ResidencyWish.UNPINNED
        resident = ResidentModel(name, built.bundle, wish, built.scratch_bytes)
        return ServableModel(resident, built.bundle.manifest, built.programs, 0, 0.0)

    def remove(self, name: str) -> None:
        """Serve a model no longer; returns when its weights have left the device."""
        done = threading.Event()
        self.parts.engine.remove(name, done.set)
        _wait(done, f"removing {name}")

    def load(self, name: str) -> float:
        """Bring a model that is not there to the device; seconds from the decision until it is callable, as the worker
        reports them.
        """
        if self.models[name].tier is Tier.DEVICE:
            raise BenchmarkError(f"{name} is on the device already")
        self.parts.engine.post(lambda: self._want(name))
        time.sleep(UNSEEN_SECONDS)
        return self._until_loaded(name)

    def _want(self, name: str) -> None:
        self.parts.residency.want(name)

    def _until_loaded(self, name: str) -> float:
        while True:
            model = self.models[name]
            if model.tier is Tier.DEVICE and model.load_seconds is not None:
                return model.load_seconds
            if model.refusal is not None:
                raise BenchmarkError(model.refusal.message)
            if not self._changed.acquire(timeout=PATIENCE):
                raise BenchmarkError(f"{name} was not loaded within {PATIENCE:g} s")

    def submit(self, name: str, inputs: Array, done: Callable[[Answered], None]) -> None:
        """Call a model; `done` is called on the device thread. Any thread."""
        now = time.monotonic()

        def answered(outcome: Outcome) -> None:
            done(Answered(now, time.monotonic(), outcome if isinstance(outcome, Refusal) else None))

        self.parts.engine.submit(Call(name, (inputs,), {}, now + PATIENCE, answered))

    def call(self, name: str, inputs: Array | None = None) -> Answered:
        """Call a model and wait for the answer."""
        answers: list[Answered] = []
        done = threading.Event()

        def answered(answer: Answered) -> None:
            answers.append(answer)
            done.set()

        self.submit(name, self.zeros(name) if inputs is None else inputs, answered)
        _wait(done, f"a call of {name}")
        return answers[0]

    def zeros(self, name: str) -> Array:
        """Inputs for a model."""
        (port,) = self._built[name].bundle.manifest.inputs
        return np.zeros([int(axis) for axis in port.shape], np.float32)

    @contextmanager
    def executing(self, name: str) -> Iterator[list[Answered]]:
        """Call a model without pause while the block runs, one call after the other; yields the answers so far.

        Raises:
            BenchmarkError: a call was refused.
        """
        answers: list[Answered] = []
        inputs = self.zeros(name)
        going, ended = threading.Event(), threading.Event()
        going.set()

        def answered(answer: Answered) -> None:
            answers.append(answer)
            if going.is_set():
                self.submit(name, inputs, answered)
            else:
                ended.set()

        self.submit(name, inputs, answered)
        try:
            yield answers
        finally:
            going.clear()
            _wait(ended, f"the last call of {name}")
        if refused := [answer.refusal for answer in answers if answer.refusal is not None]:
            raise BenchmarkError(refused[0].message)

    def compact(self, mode: CompactionMode, reload: Sequence[str] = ()) -> CompactionResult:
        """Compact and wait until it is done.

        Raises:
            BenchmarkError: it was refused.
        """
        results: list[CompactionResult | Refusal] = []
        done = threading.Event()

        def compacted(result: CompactionResult | Refusal) -> None:
            results.append(result)
            done.set()

        self.parts.engine.post(lambda: self.parts.residency.compact(mode, reload, compacted))
        _wait(done, "a compaction")
        if isinstance(results[0], Refusal):
            raise BenchmarkError(results[0].message)
        return results[0]

    def plan_against_driver(self) -> int | None:
        """What the driver counts for this process now beyond the lines but slack of the plan in force, in bytes; None where
        it cannot be told.
        """
        return self._beyond(self.plan)

    def made_against_driver(self) -> int | None:
        """The same for the plan as it was made, before what the driver takes was known: below 0 it had more than enough."""
        return self._beyond(self.made)

    def _beyond(self, plan: Plan) -> int | None:
        used = self.machine.process_bytes(now_exactly=True)
        return None if used is None else used - sum(line.nbytes for line in plan.lines if line.name != SLACK)

    def close(self) -> None:
        """Give everything back."""
        self.parts.stop(grace_seconds=0.0)


def _wait(event: threading.Event, what: str) -> None:
    if not event.wait(PATIENCE):
        raise BenchmarkError(f"{what} did not end within {PATIENCE:g} s")
