# SPDX-License-Identifier: Apache-2.0
"""Looks at the folder of models: never on the loop, one at a time, and whatever they end with."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future

import pytest
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.assignment import AssignedModel, AssignmentError
from ballast_worker.control.lookout import Lookout
from ballast_worker.control.standalone import Folder

A, B = (AssignedModel(name, f"file:///{name}") for name in "ab")


class Looks(Executor):
    """Looks that end when the test says so, and what it is asked to run."""

    def __init__(self):
        self.started: list[Future] = []

    def submit(self, look, /, *given, **also):
        self.started.append(Future())
        return self.started[-1]


class Rig:
    """A lookout without a folder, whose looks are by hand."""

    def __init__(self, config):
        self.looks = Looks()
        self.lookout = Lookout(Folder(config), scan_seconds=2.0, executor=self.looks)

    def poll(self, now, *known):
        return self.lookout.poll(now, {model.name: model for model in known})


@pytest.fixture
def rig(config_for):
    return Rig(config_for())


def test_what_a_look_found_is_told_once(rig):
    assert rig.poll(0.0, A) is None
    rig.looks.started[0].set_result((A, B))
    assert rig.poll(0.5, A) == (A, B)
    assert rig.poll(1.0, A, B) is None
    assert len(rig.looks.started) == 1


@pytest.mark.parametrize("found", [None, (A,)])
def test_what_has_not_settled_or_is_known_is_not_told(rig, found):
    rig.poll(0.0, A)
    rig.looks.started[0].set_result(found)
    assert rig.poll(0.5, A) is None


def test_a_look_that_hangs_is_warned_of_once_and_not_followed_by_another(rig, caplog):
    for now in (0.0, 2.0, 29.5):
        assert rig.poll(now, A) is None
    assert not caplog.records
    for now in (30.0, 60.0, 600.0):
        assert rig.poll(now, A) is None
    assert [record.getMessage() for record in caplog.records] == [
        "modelDirectory has not answered for 30 s; the models stay as they are"
    ]
    assert len(rig.looks.started) == 1
    rig.looks.started[0].set_result((B,))
    assert rig.poll(601.0, A) == (B,)
    rig.poll(601.5, B)
    assert len(rig.looks.started) == 2


def test_a_folder_that_cannot_be_read_changes_nothing(rig, caplog):
    rig.poll(0.0, A)
    rig.looks.started[0].set_exception(AssignmentError("modelDirectory '/m' cannot be read: Input/output error"))
    assert rig.poll(0.5, A) is None
    assert "cannot be read: Input/output error; the models stay as they are" in caplog.text
    assert rig.poll(2.0, A) is None
    assert len(rig.looks.started) == 2


def test_a_worker_whose_folder_does_not_answer_at_the_start_can_be_ended(config_for, start, monkeypatch, tmp_path):
    asked, answered = threading.Event(), threading.Event()

    def hang(_):
        asked.set()
        answered.wait()
        return ()

    monkeypatch.setattr(Folder, "scan", hang)
    worker = start(config_for(model_directory=str(tmp_path)))
    assert asked.wait(60)
    assert worker.page("/readyz") == (503, "starting: looking for models\n")
    worker.stop()
    assert worker.exit_code == 0
    answered.set()


def test_a_worker_whose_folder_does_not_answer_any_more_serves_on_and_can_be_ended(
    config_for, start, monkeypatch, tmp_path
):
    pack_small(tmp_path / "models" / "a", factor=3.0)
    asked, answered = threading.Event(), threading.Event()

    def hang(_):
        asked.set()
        answered.wait()

    monkeypatch.setattr(Folder, "settled", hang)
    worker = start(config_for(model_directory=str(tmp_path / "models")), scan_seconds=0.0)
    worker.until_model("a", pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADED)
    assert asked.wait(60)
    assert worker.infer("a") == [3.0, 6.0, 9.0, 12.0]
    worker.stop()
    assert worker.exit_code == 0
    answered.set()


def test_a_worker_that_cannot_begin_ends(config_for, start, monkeypatch, tmp_path):
    def fail(_):
        raise RuntimeError("something unforeseen")

    monkeypatch.setattr(Folder, "scan", fail)
    worker = start(config_for(model_directory=str(tmp_path)))
    worker._thread.join(60)
    assert worker.exit_code == 1
