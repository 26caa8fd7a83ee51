# SPDX-License-Identifier: Apache-2.0
"""What a worker says and accepts while others still hold the device memory that they are about to give back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.journal import CulpritJournal
from ballast_worker.control.machine import CONTEXT_BYTES, Machine
from ballast_worker.control.planner import Planner
from ballast_worker.device.nvml import Holder, Usage
from ballast_worker.device.probe import DeviceFacts

MI = 1 << 20
CONTEXT = CONTEXT_BYTES["cuda"]
OLD = (Holder(4711, CONTEXT + 71 * MI),)


def machine_with(config: WorkerConfig, *usages: Usage) -> Machine:
    """A machine with a card whose driver tells these usages, one after the other, the last for ever."""
    left = list(usages)

    def usage(_: tuple[str, ...]) -> Usage:
        return left.pop(0) if len(left) > 1 else left[0]

    facts = DeviceFacts(kind="cuda", name="a card", total_bytes=CONTEXT + 80 * MI)
    return Machine(config, describe=lambda *_: facts.at(usage(())), usage=usage, beside=lambda _: 0)


@pytest.fixture
def config():
    return WorkerConfig.model_validate({"backend": "cuda", "device": {"reserve": 0}})


def test_bytes_that_may_fit_once_memory_is_given_back_are_not_refused_before(config, tmp_path):
    machine = machine_with(config, Usage(9 * MI, CONTEXT + 71 * MI, OLD), Usage(CONTEXT + 40 * MI, 40 * MI))
    small, large = (pack_small(tmp_path / str(size), mebibytes=size) for size in (20, 60))
    beyond = pack_small(tmp_path / "beyond", mebibytes=90)
    planner = Planner(config, machine)
    assert planner.limits.check_bytes(small) is None
    assert planner.limits.check_bytes(large) is None
    assert planner.limits.check_bytes(beyond) is not None
    machine.settle(pause=lambda _: False, say=lambda _: None)
    planner.look()
    assert planner.limits.check_bytes(small) is None
    assert planner.limits.check_bytes(large) is not None


class Late(Machine):
    """A machine on which the first settling ends when it is told to."""

    def __init__(self, config: WorkerConfig, given_back: threading.Event) -> None:
        super().__init__(config)
        self._given_back, self._after, self.settled = given_back, self.budget, False
        self.budget = replace(self.budget, nbytes=4 * MI)

    def most(self):
        return self._after

    def settle(self, *, pause, say) -> None:
        say("waiting for device memory")
        while not self._given_back.is_set() and not pause(0.05):
            pass
        self.budget, self.settled = self._after, True


@pytest.fixture
def given_back():
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def start_late(start, given_back):
    """Start workers that wait until device memory is given back."""
    return lambda config: start(config, machine=Late(config, given_back))


def test_what_is_assigned_while_memory_is_waited_for_is_measured_by_what_is_there_then(
    given_back, config_for, start_late, tmp_path
):
    large = pack_small(tmp_path / "large", mebibytes=8)
    worker = start_late(config_for(managed=True))
    worker.until(lambda state: state.condition.message == "waiting for device memory")
    assert not worker.assign(assigned(large)).refused
    given_back.set()
    seen = set()

    def loaded(state: pb.WorkerState) -> bool:
        seen.update(model.phase for model in state.models)
        return pb.MODEL_PHASE_LOADED in seen

    worker.until(loaded)
    assert pb.MODEL_PHASE_REFUSED not in seen


def test_once_memory_is_there_a_worker_waits_for_its_assignment_and_says_so(given_back, config_for, start_late):
    worker = start_late(config_for(managed=True))
    worker.until(lambda state: state.condition.message == "waiting for device memory")
    given_back.set()
    worker.until(lambda state: state.condition.message == "waiting for the first assignment")


def crashed_with(directory: Path, model: str) -> None:
    """A process died while it ran this model."""
    directory.mkdir(exist_ok=True)
    CulpritJournal(directory / "journal").begin(model, (("batch", 1),))


def assign_once(start, config, *models) -> None:
    worker = start(config)
    worker.assign(*models)
    worker.stop()


def test_a_model_that_ran_when_the_process_died_is_known_although_the_next_one_ends_while_it_waits(
    given_back, config_for, start_late, small_bundle, tmp_path
):
    config = config_for(managed=True)
    assign_once(start_late, config, assigned(small_bundle, "m"))
    crashed_with(tmp_path / "state", "m")
    start_late(config).stop()
    crashed_with(tmp_path / "state", "m")
    start_late(config).stop()
    given_back.set()
    model = start_late(config).until_model("m", pb.MODEL_PHASE_REFUSED)
    assert model.failure.reason == Reason.QUARANTINED


def test_a_spec_that_is_assigned_while_memory_is_waited_for_is_not_blamed(
    given_back, config_for, start_late, small_bundle, tmp_path
):
    config = config_for(managed=True)
    assign_once(start_late, config, assigned(small_bundle, "m"))
    crashed_with(tmp_path / "state", "m")
    start_late(config).stop()
    crashed_with(tmp_path / "state", "m")
    worker = start_late(config)
    worker.assign(assigned(small_bundle, "m", residency=pb.RESIDENCY_DEVICE), generation=2)
    given_back.set()
    worker.until_model("m", pb.MODEL_PHASE_LOADED)
