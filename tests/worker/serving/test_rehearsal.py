# SPDX-License-Identifier: Apache-2.0
"""Programs are run once before anything is served; one that fails costs its own model alone."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest

from ballast_contract.reasons import Reason
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.serving.executable import LoadedProgram
from ballast_worker.serving.rehearsal import Rehearsed, rehearse

MIB = 1 << 20


class Notes:
    """A journal that is read by the test."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, object]] = []
        self.open = 0

    def begin(self, model, program) -> None:
        self.begun.append((model, program))
        self.open += 1

    def end(self, model, program) -> None:
        self.open -= 1


@pytest.fixture(params=["arena", "bfc"])
def memory(request) -> DeviceMemory:
    if request.param == "arena":
        return ArenaMemory(CpuBackend(), 4 * MIB)
    return BfcMemory(SimulatedPool(8 * MIB), scratch=MIB)


@pytest.fixture
def trial(memory) -> Callable[..., Rehearsed]:
    notes = Notes()

    def run(*models, fatal=None) -> Rehearsed:
        done = rehearse(
            models,
            device=jax.local_devices()[0],
            memory=memory,
            journal=notes,
            fatal=fatal or pytest.fail,
        )
        assert not notes.open
        assert memory.extents() == (), "what it ran on is gone"
        return done

    run.notes = notes
    return run


def test_every_program_is_run_once_and_kept_for_serving(trial, affine):
    done = trial(affine.servable("a"))
    assert not done.refused
    assert trial.notes.begun == [("a", program.dimensions) for program in affine.programs]
    assert set(done.programs) == {program.digest for program in affine.programs}


def test_a_program_that_fails_refuses_its_model_alone(trial, affine, monkeypatch):
    plain, runs = LoadedProgram.run_on_zeros, []

    def fails_first(self, weights):
        runs.append(self)
        if len(runs) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        plain(self, weights)

    monkeypatch.setattr(LoadedProgram, "run_on_zeros", fails_first)
    done = trial(affine.servable("a"), affine.servable("b"))
    ((model, refusal),) = done.refused
    assert model.resident.name == "a"
    assert refusal.reason is Reason.LOAD_FAILED_PERMANENT
    assert "of model 'a' failed in its trial run" in refusal.message
    assert "RESOURCE_EXHAUSTED" in refusal.message
    assert len(runs) == 1 + len(affine.programs)


def test_an_executable_that_is_gone_refuses_its_model_alone(trial, affine, monkeypatch):
    gone = affine.programs[0].file
    content = gone.read_bytes()
    gone.unlink()
    try:
        done = trial(affine.servable("a"))
    finally:
        gone.write_bytes(content)
    ((model, refusal),) = done.refused
    assert model.resident.name == "a"
    assert refusal.reason is Reason.LOAD_FAILED_WILL_RETRY


def test_a_device_that_takes_no_more_work_is_fatal_and_the_model_named(trial, affine, monkeypatch):
    def fails(self, weights):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(LoadedProgram, "run_on_zeros", fails)
    monkeypatch.setattr("ballast_worker.serving.rehearsal.device_works", lambda _: False)
    said: list[str] = []
    trial(affine.servable("a"), fatal=said.append)
    assert "model 'a'" in said[0]


def test_a_model_that_does_not_fit_is_left_to_admission(affine):
    memory = ArenaMemory(CpuBackend(), 0)
    done = rehearse(
        [affine.servable("a")], device=jax.local_devices()[0], memory=memory, journal=Notes(), fatal=pytest.fail
    )
    assert not done.refused
    assert set(done.programs) == {program.digest for program in affine.programs}
