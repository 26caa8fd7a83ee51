# SPDX-License-Identifier: Apache-2.0
"""An engine on a residency that tests hold in their hand, calls that can be waited for, a catalog that is a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.manifest import Manifest
from ballast_worker.bundle.reader import Bundle
from ballast_worker.residency.demand import Readiness, Refusal
from ballast_worker.residency.protocol import ResidentModel
from ballast_worker.serving.call import Call, Outcome, ServableModel
from ballast_worker.serving.catalog import Elsewhere, Here
from ballast_worker.serving.engine import DeviceEngine
from ballast_worker.serving.frontend import FrontendThread

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "bfloat16")  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A bundle with its executables, and the function in plain JAX to compare with."""

    bundle: Bundle
    programs: tuple[Any, ...]
    function: Callable[..., Any]
    parameters: Any

    def servable(
        self,
        name: str,
        *,
        max_batch: int = 0,
        max_delay_seconds: float = 0.0,
        wish: ResidencyWish = ResidencyWish.UNPINNED,
    ) -> ServableModel:
        scratch = max(program.scratch_bytes for program in self.programs)
        return ServableModel(
            resident=ResidentModel(name, self.bundle, wish, scratch),
            manifest=self.bundle.manifest,
            programs=self.programs,
            max_batch=max_batch,
            max_delay_seconds=max_delay_seconds,
        )

    def expected(self, *inputs: np.ndarray) -> list[np.ndarray]:
        with jax.enable_x64(True):
            return [np.asarray(leaf) for leaf in jax.tree.leaves(self.function(self.parameters, *inputs))]


class HeldResidency:
    """Residency whose loads end when a test says so; leases give real arrays of the bundle's weights."""

    def __init__(self, engine: DeviceEngine, *, automatic: bool = True) -> None:
        self.engine = engine
        self.automatic = automatic
        self.known: dict[str, ResidentModel] = {}
        self.resident: dict[str, tuple[Bundle, list[jax.Array]]] = {}
        self.wanted: list[str] = []
        self.leases: list[str] = []
        self.held = 0
        self.dispatches: list[str] = []
        self.refusals: dict[str, Refusal] = {}
        self.register_refusal: Refusal | None = None
        self.load_seconds: dict[str, float] = {}
        self._forgotten: dict[str, Callable[[], None]] = {}

    def register(self, model: ResidentModel) -> Refusal | None:
        if self.register_refusal is None:
            self.known[model.name] = model
            if self.automatic and model.name in self.resident:
                self.engine.post(lambda: self.complete(model.name))
        return self.register_refusal

    def forget(self, name: str, done: Callable[[], None]) -> None:
        self.known.pop(name, None)
        self.resident.pop(name, None)
        if self.engine.executing(name):
            self._forgotten[name] = done
        else:
            done()

    def want(self, name: str) -> Readiness | Refusal:
        self.wanted.append(name)
        if name in self.refusals:
            return self.refusals[name]
        if name in self.resident:
            return Readiness.READY
        if self.automatic:
            self.engine.post(lambda: self.complete(name))
        return Readiness.LOADING

    def lease(self, name: str) -> Any:
        assert self.wanted[-1] == name, "a lease follows its wish in the same turn"
        self.leases.append(name)
        self.held += 1
        return _Lease(self, self.resident[name][1])

    def serving(self, name: str) -> Bundle | None:
        if name in self.resident:
            return self.resident[name][0]
        return self.known[name].bundle if name in self.known else None

    def expected_load_seconds(self, name: str) -> float | None:
        return self.load_seconds.get(name)

    def dispatched(self, name: str) -> None:
        assert not self.engine.executing(name) or self.held, "an execution that goes on holds a lease"
        self.dispatches.append(name)
        if name in self._forgotten and not self.engine.executing(name):
            self._forgotten.pop(name)()

    def complete(self, name: str) -> None:
        """End a load well. On the device thread."""
        bundle = self.known[name].bundle
        self.resident[name] = (bundle, _weights(bundle))
        self.engine.loaded(name)

    def evict(self, name: str) -> None:
        """Take the weights off the device. On the device thread."""
        assert not self.engine.executing(name)
        del self.resident[name]
        self.engine.changed(name)


@dataclass
class _Lease:
    residency: HeldResidency
    arrays: Sequence[jax.Array]

    def release(self) -> None:
        self.residency.held -= 1


def _weights(bundle: Bundle) -> list[jax.Array]:
    image = np.zeros(bundle.layout.nbytes, np.uint8)
    with bundle.open_weights() as weights:
        weights.read_into(memoryview(image), layout=bundle.layout)
    arrays = [
        image[placed.offset : placed.end].view(placed.spec.dtype).reshape(placed.spec.shape)
        for placed in bundle.layout.tensors
    ]
    return [jax.device_put(array, jax.devices("cpu")[0]) for array in arrays]


@dataclass
class Clock:
    """Monotonic seconds that tests move."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Fatal:
    messages: list[str] = field(default_factory=list)

    def __call__(self, message: str) -> None:
        self.messages.append(message)


class Rig:
    """An engine with its residency, and calls whose outcomes can be waited for."""

    def __init__(self, **options: Any) -> None:
        automatic = options.pop("automatic", True)
        self.clock = Clock()
        self.fatal = Fatal()
        options = {"max_queue": 64, "clock": self.clock, "fatal": self.fatal, **options}
        self.engine = DeviceEngine(device=jax.devices("cpu")[0], **options)
        self.residency = HeldResidency(self.engine, automatic=automatic)
        self.engine.start(self.residency)

    def add(self, name: str, model: Model, **options: Any) -> Refusal | None:
        results: list[Refusal | None] = []
        done = threading.Event()

        def receive(refusal: Refusal | None) -> None:
            results.append(refusal)
            done.set()

        self.engine.add(model.servable(name, **options), receive)
        assert done.wait(30)
        return results[0]

    def submit(self, name: str, *inputs: np.ndarray, seconds: float = 60.0, **dimensions: int) -> Answer:
        answer = Answer()
        self.engine.submit(Call(name, inputs, dimensions, self.clock() + seconds, answer))
        return answer

    def on_device(self, action: Callable[[], Any]) -> Any:
        """Run something on the device thread and wait for its result; everything posted before has run by then."""
        results: list[Any] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(action())
            finally:
                done.set()

        self.engine.post(run)
        assert done.wait(30)
        return results[0]

    def serves(self, name: str) -> Manifest | None:
        """The manifest of what answers calls of a name now."""
        return serves(self.engine, name)

    def settle(self) -> None:
        """Wait until the device thread has done what there was."""
        self.on_device(lambda: None)
        self.on_device(lambda: None)


class Answer:
    """The outcome of a call."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._outcomes: list[Outcome] = []

    def __call__(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._done.set()

    @property
    def arrived(self) -> bool:
        return self._done.is_set()

    def outcome(self) -> Outcome:
        assert self._done.wait(30), "no outcome"
        assert len(self._outcomes) == 1, "a call has one outcome"
        return self._outcomes[0]

    def outputs(self) -> Sequence[np.ndarray]:
        outcome = self.outcome()
        assert not isinstance(outcome, Refusal), outcome
        return outcome

    def refusal(self) -> Refusal:
        outcome = self.outcome()
        assert isinstance(outcome, Refusal), "the call was answered"
        return outcome


def serves(engine: DeviceEngine, name: str) -> Manifest | None:
    """The manifest of what an engine answers calls of a name with."""
    served = engine._dispatcher.served.get(name)
    return served.current.model.manifest if served is not None else None


class TableCatalog:
    """A catalog that is a table: what is not in it is looked up in the engine."""

    def __init__(self, engine: DeviceEngine) -> None:
        self.engine = engine
        self.table: dict[str, Here | Elsewhere | Refusal] = {}
        self.accepted = True

    def find(self, model: str) -> Here | Elsewhere | Refusal | None:
        if model in self.table:
            return self.table[model]
        manifest = serves(self.engine, model)
        return Here(manifest) if manifest is not None else None

    def ready(self) -> bool:
        return self.accepted


@dataclass
class Server:
    """A worker's front end with real models behind it."""

    rig: Rig
    catalog: TableCatalog
    front: FrontendThread

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.front.ports.http}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.front.ports.grpc}"

    def stop(self) -> None:
        if self.front._thread.is_alive():
            self.front.stop(grace_seconds=1)
