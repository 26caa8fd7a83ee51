# SPDX-License-Identifier: Apache-2.0
"""What a line-up hands over and takes back while specs change faster than the device thread answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.plain_bundles import random_bundle

from ballast_contract.config import ResidencyWish, WorkerConfig
from ballast_contract.plan_lines import CODE, SLACK
from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildResult, BuiltProgram
from ballast_worker.bundle.reader import open_bundle
from ballast_worker.control import lineup
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.lineup import Lineup
from ballast_worker.control.models import Stage
from ballast_worker.control.planning import Basis, DeviceLimits
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.device.budget import Budget
from ballast_worker.residency.demand import Refusal

MI = 1 << 20


class Builder:
    """Builds every bundle at once, into the executables that the test says."""

    def __init__(self):
        self.code: dict[str, dict[str, int]] = {}  # bytes by executable, by digest of the bundle

    def build(self, request, *, progress):
        programs = tuple(
            BuiltProgram((("batch", rows),), Path(file), file, 0, 0, nbytes, 0.0)
            for rows, (file, nbytes) in enumerate(self.code.get(request.digest, {}).items(), start=1)
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
        self.installed = []

    def add(self, model, done):
        self.offers.append((model, done))

    def remove(self, name, done):
        self.served.pop(name, None)
        done()

    def install(self):
        """What was offered first."""
        model, done = self.offers.pop(0)
        self.served[model.resident.name] = model.resident.bundle.digest
        self.installed.append(model)
        done(None)


class Rig:
    """A line-up on a device of 16 GiB, its loop run by hand."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.engine, self.builder = Engine(), Builder()
        config = WorkerConfig.model_validate({"backend": "cuda"})
        self.limits = DeviceLimits(Basis(config, Budget(16 << 30, "a test", "16Gi"), 0, 0))
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
            self.inbox.get(timeout=20)()

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
            random_bundle(path, 4096, name=name, seed=sum(str(path).encode()))
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


@pytest.fixture
def planned(rig):
    """The plan has 64 MiB for executables."""
    plan = rig.limits.basis.plan(rig.limits.basis.inputs({}))
    assert plan.line(CODE) == 64 * MI
    rig.limits.plan = plan
    return rig


@pytest.fixture
def coded(planned, spec):
    """A model and the MiB that each of its executables takes."""

    def make(name: str, bundle: str, **mebibytes: int) -> AssignedModel:
        made = spec(name, bundle)
        digest = open_bundle(Path(made.uri.removeprefix("file://"))).digest
        planned.builder.code[digest] = {file: nbytes * MI for file, nbytes in mebibytes.items()}
        return made

    return make


def wish(rig, name, residency) -> Future[Refusal | None]:
    done: Future[Refusal | None] = Future()
    rig.lineup.override(name, residency, done)
    return done


def test_an_assignment_that_comes_while_a_wish_is_handed_over_ends_the_wish(rig, spec):
    one = spec("one")
    rig.serve(one)
    done = wish(rig, "one", ResidencyWish.DEVICE)
    rig.lineup.apply((one,), {})  # as it was: whoever assigns knows of no wish
    rig.engine.install()
    rig.until(done.done)
    rig.until(lambda: bool(rig.engine.offers))
    rig.engine.install()
    rig.until_stage("one", Stage.SERVED)
    assert done.result() is None
    assert rig.lineup.views["one"].spec == one
    assert [model.resident.wish for model in rig.engine.installed] == [
        ResidencyWish.UNPINNED,
        ResidencyWish.DEVICE,
        ResidencyWish.UNPINNED,
    ]


def test_a_wish_that_the_device_refuses_leaves_everything_as_it_was(rig, spec):
    rig.serve(spec("one"))
    before = rig.lineup.views["one"]
    done = wish(rig, "one", ResidencyWish.DEVICE)
    refusal = Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "no room", None)
    rig.engine.offers.pop(0)[1](refusal)
    rig.until(done.done)
    assert done.result() == refusal
    assert rig.lineup.views["one"] == before


def test_a_wish_for_what_is_not_served_yet_is_a_key_error(rig, spec):
    rig.lineup.apply((spec("one"),), {})
    assert isinstance(wish(rig, "one", ResidencyWish.DEVICE).exception(), KeyError)
    assert isinstance(wish(rig, "other", ResidencyWish.DEVICE).exception(), KeyError)


def test_executables_that_serve_on_after_their_spec_was_refused_count_against_the_plan(planned, coded, spec):
    planned.serve(coded("old", "first", x=40))
    gone = spec("old", "nowhere", exists=False)
    planned.lineup.apply([gone], {})
    planned.until_stage("old", Stage.REFUSED)
    planned.lineup.apply([gone, coded("new", "second", y=40)], {})
    planned.until_stage("new", Stage.REFUSED)
    assert planned.lineup.views["new"].failure.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert f"beside the {40 * MI} of others" in planned.lineup.views["new"].failure.message


def test_executables_of_a_model_that_is_being_replaced_count_beside_the_new_ones(planned, coded):
    planned.serve(coded("a", "first", x=30))
    replaced = coded("a", "second", y=20)
    planned.lineup.apply([replaced], {})
    planned.until(lambda: bool(planned.engine.offers))
    planned.lineup.apply([replaced, coded("b", "third", z=20)], {})
    planned.until_stage("b", Stage.REFUSED)
    assert f"beside the {50 * MI} of others" in planned.lineup.views["b"].failure.message


def test_an_executable_that_two_versions_share_counts_once(planned, coded):
    planned.serve(coded("a", "first", x=40))
    replaced = coded("a", "second", x=40)
    planned.lineup.apply([replaced], {})
    planned.until(lambda: bool(planned.engine.offers))
    planned.serve(replaced, coded("b", "third", y=20))


def test_old_executables_serve_on_in_what_the_plan_keeps_free_until_new_ones_take_over(planned, coded):
    planned.serve(coded("a", "first", x=64))
    planned.serve(coded("a", "second", y=64))


def test_new_executables_that_have_no_room_beside_those_they_replace_are_refused(planned, coded):
    planned.serve(coded("a", "first", x=64))
    lines = tuple(replace(line, nbytes=MI) if line.name == SLACK else line for line in planned.limits.plan.lines)
    planned.limits.plan = replace(planned.limits.plan, lines=lines)
    planned.lineup.apply([coded("a", "second", y=2)], {})
    planned.until_stage("a", Stage.REFUSED)
    message = planned.lineup.views["a"].failure.message
    assert f"and the {64 * MI} that serve until then" in message
    assert f"the plan has {64 * MI} for code and keeps {MI} free" in message


CHANGED = Refusal(Reason.SOURCE_CHANGED, "the files were replaced after the bundle was opened", 1.0)


def test_a_directory_that_was_replaced_is_looked_at_anew_once_its_old_bytes_cannot_be_loaded(rig, spec, tmp_path):
    served = spec("m")
    rig.serve(served)
    old = rig.lineup.views["m"].serving
    new = random_bundle(tmp_path / "m", 8192, name="m", seed=7)
    rig.lineup.load_refused("m", CHANGED)
    rig.now += 1.0
    rig.lineup.tick()
    assert rig.lineup.views["m"].serving is old
    rig.until(lambda: bool(rig.engine.offers))
    rig.engine.install()
    rig.until_stage("m", Stage.SERVED)
    assert rig.engine.served["m"] == new.digest
    assert rig.lineup.views["m"].serving.bundle.digest == new.digest


def test_files_that_never_stay_the_same_are_looked_at_no_more_than_once_a_second(rig, spec):
    rig.serve(spec("m"))
    for _ in range(2):
        rig.lineup.load_refused("m", CHANGED)
        rig.now += 0.5
        rig.lineup.tick()
        assert rig.lineup.views["m"].stage is Stage.SERVED
        rig.lineup.load_refused("m", CHANGED)
        rig.now += 0.5
        rig.lineup.tick()
        assert rig.lineup.views["m"].stage is Stage.PENDING
        rig.until(lambda: bool(rig.engine.offers))
        rig.engine.install()
        rig.until_stage("m", Stage.SERVED)


def test_a_model_that_cannot_be_loaded_for_another_reason_or_has_its_digest_assigned_is_not_looked_at_anew(rig, spec):
    free = spec("free")
    fixed = spec("fixed")
    fixed = replace(fixed, digest=open_bundle(Path(fixed.uri.removeprefix("file://"))).digest)
    rig.serve(free, fixed)
    rig.lineup.load_refused("free", Refusal(Reason.SOURCE_NOT_FOUND, "nothing is there", 1.0))
    rig.lineup.load_refused("fixed", CHANGED)
    rig.lineup.load_refused("gone", CHANGED)
    rig.now += 300.0
    rig.lineup.tick()
    assert {view.stage for view in rig.lineup.views.values()} == {Stage.SERVED}


def test_a_store_that_hangs_does_not_keep_the_worker_from_ending(rig, spec, monkeypatch):
    monkeypatch.setattr(lineup, "_BUILDERS_END_SECONDS", 0.05)
    hangs, answered = threading.Event(), threading.Event()

    def build(request, *, progress):
        hangs.set()
        answered.wait()
        return BuildResult((), 0, 0)

    monkeypatch.setattr(rig.builder, "build", build)
    rig.lineup.apply([spec("m")], {})
    rig.until(hangs.is_set)
    rig.lineup.close()
    assert not answered.is_set()
    answered.set()


def test_what_can_never_be_loaded_is_served_no_longer_until_its_spec_changes(rig, spec):
    rig.serve(spec("m"), spec("other"))
    rig.lineup.load_refused("m", Refusal(Reason.BUNDLE_INVALID, "the weights are others"))
    view = rig.lineup.views["m"]
    assert (view.stage, view.serving, view.failure.permanent) == (Stage.REFUSED, None, True)
    assert set(rig.engine.served) == {"other"}
    rig.now += 3600.0
    rig.lineup.tick()
    assert rig.lineup.views["m"].stage is Stage.REFUSED
    rig.lineup.apply([replace(spec("m"), max_batch=1), spec("other")], {})
    rig.until(lambda: bool(rig.engine.offers))
    rig.engine.install()
    rig.until_stage("m", Stage.SERVED)
