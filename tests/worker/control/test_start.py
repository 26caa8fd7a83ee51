# SPDX-License-Identifier: Apache-2.0
"""What a setting names and the machine does not have is told at the start, by setting, and by `plan` in the same words."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

import pytest

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import main, preview, quarantine
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentFile
from ballast_worker.control.journal import Culprit, CulpritJournal
from ballast_worker.control.machine import Machine
from ballast_worker.control.process import WorkerProcess
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.settings import SettingError

NESTED = "[" * 100_000


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("http_port", "serving.httpPort"),
        ("grpc_port", "serving.grpcPort"),
        ("metrics_port", "serving.metricsPort"),
        ("control_port", "serving.controlPort"),
        ("introspection_port", "serving.introspectionPort"),
    ],
)
def test_a_port_that_is_taken_is_told_before_anything_is_built(config_for, taken, key, setting):
    with pytest.raises(SettingError, match=rf"^{setting}.*{taken} cannot be listened on") as caught:
        WorkerProcess(config_for(serving={key: taken}))
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_told_of_the_host(config_for, host):
    with pytest.raises(SettingError, match=rf"^serving\.host '{host}' is no address of this machine"):
        WorkerProcess(config_for(serving={"host": host}))


def test_ports_that_were_held_from_the_start_are_served_on(config_for, start, small_bundle):
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        http, grpc = (probe.getsockname()[1] for probe in (one, other))
    models = [{"name": "m", "uri": f"file://{small_bundle.path}"}]
    running = start(config_for(models=models, serving={"http_port": http, "grpc_port": grpc}))
    assert running.worker.ready.wait(120)
    ports = running.worker.parts.frontend.ports
    assert (ports.http, ports.grpc) == (http, grpc)
    with socket.create_connection(("127.0.0.1", http), timeout=5):
        pass


def file_at(path):
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("state_directory", "stateDirectory '{}' cannot be used: {}"),
        ("executable_store", "the executable store '{}' cannot be written: {}.* set executableStore"),
    ],
)
def test_a_directory_that_cannot_be_made_is_told_of_its_setting(config_for, tmp_path, key, words):
    place = file_at(tmp_path / "file")
    for where, why in (
        (place, "File exists"),
        (place / "below", "Not a directory"),
        (tmp_path / ("x" * 256), "File name too long"),
        ("/proc/nowhere", "No such file or directory"),
    ):
        with pytest.raises(OSError, match="^" + words.format(where, why)):
            WorkerProcess(config_for(**{key: str(where)}))


def test_a_plan_is_refused_for_a_store_in_the_words_of_a_start(config_for, tmp_path):
    place = file_at(tmp_path / "file")
    config = config_for(executable_store=str(place))
    with pytest.raises(preview.PreviewError, match=rf"^the executable store '{place}' cannot be written: File exists"):
        preview.plan(config, Machine(config), say=str)


def test_a_plan_leaves_out_what_cannot_be_built_and_says_why(config_for, small_bundle, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/store/x")

    monkeypatch.setattr("ballast_worker.build.local.LocalBuilder.build", denied)
    config = config_for(models=[{"name": "m", "uri": f"file://{small_bundle.path}"}])
    made = preview.plan(config, Machine(config), say=str)
    assert "building failed: PermissionError" in made.refused["m"].message


def test_a_start_that_a_setting_forbids_ends_with_2_and_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(main, "prepare_process", lambda _: None)
    (tmp_path / "w.yaml").write_text(f"stateDirectory: {file_at(tmp_path / 'file')}")
    assert main.main(["--config", str(tmp_path / "w.yaml")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("ballast-worker: stateDirectory '")


def test_a_full_file_system_is_an_error_of_the_state_directory_and_no_signal(config_for, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SettingError, match=r"^stateDirectory '.*' cannot be used: No space left on device"):
        WorkerProcess(config_for())


def test_every_page_of_the_journal_is_there_before_it_is_written(tmp_path):
    CulpritJournal(tmp_path / "journal")
    status = (tmp_path / "journal").stat()
    assert status.st_blocks * 512 >= status.st_size


@pytest.mark.parametrize("text", [NESTED, '{"m": 5}', '{"m": {"at": "then"}}', "[]", "5", ""])
def test_damaged_files_of_the_state_directory_are_as_if_they_were_missing(tmp_path, text):
    for name in ("quarantine.json", "assignment.json"):
        (tmp_path / name).write_text(text)
    assert Quarantine(tmp_path).blame((), ()) == {}
    assert AssignmentFile(tmp_path).load() == Assignment()


def test_a_pipe_in_the_state_directory_is_not_waited_for(tmp_path):
    for name in ("quarantine.json", "assignment.json"):
        os.mkfifo(tmp_path / name)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ballast_worker.control.assignment import AssignmentFile\n"
        "from ballast_worker.control.quarantine import Quarantine\n"
        "AssignmentFile(Path(sys.argv[1])).load(), Quarantine(Path(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, timeout=60)


def test_a_quarantine_that_cannot_be_written_holds_in_this_process(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(quarantine, "replace_file", full)
    model, kept = AssignedModel("m", "file:///m"), Quarantine(tmp_path, clock=lambda: 0.0)
    for _ in range(2):
        kept.blame([Culprit("m", "batch=1")], [model])
    assert "died twice" in kept.check(model)
    assert "stateDirectory" in caplog.text


def test_a_pool_in_a_directory_that_could_not_exist_is_refused_by_its_setting(config_for, start, tmp_path):
    directory = tmp_path / ("x" * 256)
    running = start(config_for(managed=True, host={"directory": str(directory)}))
    running.assign()
    state = running.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert state.condition.failure.reason == "InvalidSpec"
    assert f"host.directory: {directory}/w cannot be used: File name too long" in state.condition.failure.message


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied"), ValueError("embedded null byte")]
)
def test_a_pool_that_this_user_may_not_look_at_is_refused_by_its_setting(config_for, start, monkeypatch, error):
    def describe(_):
        raise error

    monkeypatch.setitem(Machine.__init__.__kwdefaults__, "host", describe)
    running = start(config_for(managed=True))
    running.assign()
    state = running.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert state.condition.failure.message.startswith("host.directory: ")
    assert "may enter" in state.condition.failure.message


def test_planning_that_fails_is_told_once_and_tried_again_until_it_works(config_for, start, monkeypatch, caplog):
    working = Machine.locked_bytes
    tried = []

    def fails(*arguments, **given):
        tried.append(1)
        if len(tried) < 5:
            raise ZeroDivisionError("division by zero")
        return working(*arguments, **given)

    monkeypatch.setattr(Machine, "locked_bytes", fails)
    running = start(config_for(managed=True))
    running.assign()
    state = running.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert "ZeroDivisionError: division by zero" in state.condition.failure.message
    running.until(lambda state: state.condition.phase == pb.WORKER_PHASE_READY)
    assert caplog.text.count("Traceback") == 1


def test_a_worker_that_stands_alone_ends_when_planning_fails(config_for, start, monkeypatch):
    def fails(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Machine, "locked_bytes", fails)
    running = start(config_for())
    running._thread.join(60)
    assert running.exit_code == 3


@pytest.mark.parametrize("part", ["_turn", "_consider"])
def test_a_worker_that_is_told_to_end_ends_although_every_turn_fails(config_for, start, monkeypatch, part):
    def fails(*_, **__):
        raise RuntimeError("every time")

    running = start(config_for(managed=True))
    monkeypatch.setattr(running.worker, part, fails)
    running.worker.terminate()
    running._thread.join(60)
    assert running.exit_code == 0


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_a_worker_is_looked_at_on_the_address_that_it_serves_on(config_for, start, host):
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:  # a machine without IPv6
        with pytest.raises(SettingError, match=rf"^serving.host '{host}' is no address of this machine"):
            start(config_for(managed=True, serving={"host": host}))
        return
    running = start(config_for(managed=True, serving={"host": host}))
    with socket.create_connection((host, running.process.metrics_port), timeout=5):
        pass
