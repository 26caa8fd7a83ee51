# SPDX-License-Identifier: Apache-2.0
"""What a line-up hands over and takes back while specs change faster than the device thread answers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.plain_bundles import random_bundle

from ballast_contract.config import WorkerConfig
from ballast_worker.build.builder import BuildResult, BuiltProgram
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.models import Stage
from ballast_worker.control.planning import Basis, DeviceLimits
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.device.budget import Budget

MI = 1 << 20


class Builder:
    """Builds every bundle at once, into executables of so much code."""

    def __init__(self):
        self.code: dict[str, tuple[int, ...]] = {}  # by digest of the bundle

    def build(self, request, *, progress):
        programs = tuple(
            BuiltProgram((("batch", rows),), Path("x"), f"{request.digest} {rows}", 0, 0, nbytes, 0.0)
            for rows, nbytes in enumerate(self.code.get(request.digest, ()), start=1)
        )
        return BuildResult(programs, len(programs), 0)

    def tend(self, used):
        pass

    def close(self):
        pass


class Engine:
    """Installs what it was offered when the test says so."""

    def __init__(self):
        self.offers = []
        self.served = {}

    def add(self, model, done):
        self.offers.append((model, done))

    def remove(self, name, done):
        self.served.pop(name, None)
        done()

    def install(self):
        """What was offered first."""
        model, done = self.offers.pop(0)
        self.served[model.resident.name] = model.resident.bundle.digest
        done(None)


class Rig:
    """A line-up on a device of a gibibyte, its loop run by hand."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.engine, self.builder = Engine(), Builder()
        config = WorkerConfig.model_validate({"backend": "cuda"})
        self.limits = DeviceLimits(Basis(config, Budget(1 << 30, "a test", "1Gi"), 0, 0))
        self.lineup = Lineup(
            config=config,
            workshop=Workshop(config, self.builder),
            quarantine=Quarantine(root),
            limits=self.limits,
            post=self.inbox.put,
            changed=lambda *_: None,
            clock=lambda: self.now,
        )

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self.inbox.get(timeout=60)()

    def until_stage(self, name: str, stage: Stage) -> None:
        self.until(lambda: self.lineup.views[name].stage is stage)

    def settle(self) -> None:
        """Everything that was posted by now."""
        while not self.inbox.empty():
            self.inbox.get()()

    def serve(self, *specs: AssignedModel) -> None:
        """Assign these, and have the engine take all of them."""
        self.lineup.apply(specs, {})
        while not all(self.lineup.views[spec.name].stage is Stage.SERVED for spec in specs):
            self.until(lambda: bool(self.engine.offers))
            self.engine.install()
            self.settle()


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    made.lineup.serve_with(made.engine)
    yield made
    made.lineup.close()


@pytest.fixture
def spec(tmp_path):
    """A model whose bundle is its own, or is missing."""

    def make(name: str, bundle: str = "", *, exists: bool = True) -> AssignedModel:
        path = tmp_path / (bundle or name)
        if exists:
            random_bundle(path, 4096, name=name, seed=len(str(path)))
        return AssignedModel(name, f"file://{path}")

    return make


def test_a_model_that_leaves_while_it_is_handed_over_is_taken_back_whatever_came_of_its_later_spec(rig, spec):
    rig.lineup.apply([spec("m")], {})
    rig.until(lambda: bool(rig.engine.offers))
    rig.lineup.apply([spec("m", "nowhere", exists=False)], {})
    rig.until_stage("m", Stage.REFUSED)
    rig.engine.install()
    rig.lineup.apply([], {})
    rig.settle()
    assert rig.engine.served == {}


def test_what_was_handed_over_serves_when_its_spec_has_changed_meanwhile(rig, spec):
    rig.lineup.apply([spec("m")], {})
    rig.until(lambda: bool(rig.engine.offers))
    rig.lineup.apply([spec("m", "nowhere", exists=False)], {})
    rig.until_stage("m", Stage.REFUSED)
    rig.engine.install()
    rig.settle()
    view = rig.lineup.views["m"]
    assert view.stage is Stage.REFUSED
    assert view.serving is not None
    assert view.serving.bundle.digest == rig.engine.served["m"]
    assert rig.lineup.fresh


def test_what_was_handed_over_before_its_model_was_removed_does_not_serve_the_next_of_that_name(rig, spec):
    rig.lineup.apply([spec("m")], {})
    rig.until(lambda: bool(rig.engine.offers))
    rig.engine.install()
    rig.lineup.apply([], {})
    rig.lineup.apply([spec("m", "nowhere", exists=False)], {})
    rig.until_stage("m", Stage.REFUSED)
    assert rig.engine.served == {}
    assert rig.lineup.views["m"].serving is None
