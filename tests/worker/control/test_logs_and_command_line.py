# SPDX-License-Identifier: Apache-2.0
"""What people see first: logs in the form that suits, and a command line that helps."""

from __future__ import annotations

import io
import json
import logging

import pytest
import yaml

from ballast_contract.config import LogLevel
from ballast_worker.control import logs, main
from ballast_worker.control.logs import HumanFormatter, JsonFormatter


def record(message="hello %s", *args, level=logging.INFO, **extra):
    made = logging.LogRecord("ballast", level, __file__, 1, message, args or ("you",), None)
    vars(made).update(extra)
    return made


def test_a_machine_reads_json_with_every_extra_field():
    line = json.loads(JsonFormatter().format(record(event="device.plan", lines={"code": 3})))
    assert line["message"] == "hello you"
    assert line["level"] == "info"
    assert line["event"] == "device.plan"
    assert line["lines"] == {"code": 3}
    assert line["time"].endswith("Z")


def test_an_exception_stays_on_the_line_of_its_record():
    try:
        int("broken")
    except ValueError as error:
        made = record()
        made.exc_info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: invalid literal" in json.loads(text)["exception"]


def test_people_read_short_lines():
    text = HumanFormatter().format(record(level=logging.WARNING))
    assert text.endswith("warning: hello you")
    assert "{" not in text


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--confg", "x.yaml"], "did you mean '--config'?"),
        (["plan", "--jsn"], "did you mean '--json'?"),
        (["--mem-fraction=0.9"], "its name here is device.budget"),
        (["serv"], "invalid choice: 'serv'"),
        (["explain", "--limit", "-3"], "--limit: -3 is not a number from 1"),
        (["regions", "--remove", ""], "--remove: an empty text names no directory"),
        (["explain", "--limit", "0"], "--limit: 0 is not a number from 1"),
    ],
)
def test_what_the_command_line_does_not_know_is_refused_with_a_hint(arguments, hint, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_check_config_prints_every_default(tmp_path, capsys):
    (tmp_path / "w.yaml").write_text("device: {budget: 48g}\n")
    assert main.main(["check-config", str(tmp_path / "w.yaml")]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["device"]["budget"] == 48 << 30
    assert shown["serving"]["httpPort"] == 8000


@pytest.mark.parametrize("order", [("--config", "FILE", "check-config"), ("check-config", "--config", "FILE")])
def test_the_configuration_file_is_named_before_or_behind_the_command(tmp_path, capsys, order):
    (tmp_path / "w.yaml").write_text("device: {budget: 48g}\n")
    assert main.main([str(tmp_path / "w.yaml") if word == "FILE" else word for word in order]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["device"]["budget"] == 48 << 30


@pytest.mark.parametrize("typo", ["devise: {}", "device: {bugdet: 3}", "serving: {httpPrt: 1}"])
def test_a_misspelled_key_is_refused_with_the_nearest(tmp_path, typo, capsys):
    """One letter off, at any depth."""
    (tmp_path / "w.yaml").write_text(typo)
    assert main.main(["check-config", str(tmp_path / "w.yaml")]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_the_environment_overrides_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BALLAST_DEVICE_BUDGET", "2g")
    (tmp_path / "w.yaml").write_text("device: {budget: 48g}\n")
    main.main(["check-config", str(tmp_path / "w.yaml")])
    assert yaml.safe_load(capsys.readouterr().out)["device"]["budget"] == 2 << 30


def test_a_variable_of_the_first_system_is_warned_of_with_the_one_to_set(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("INFERENCE_SERVER_RUNTIME_HOST_WEIGHT_BUDGET", "48g")
    (tmp_path / "w.yaml").write_text("")
    assert main.main(["check-config", str(tmp_path / "w.yaml")]) == 0
    assert "'INFERENCE_SERVER_RUNTIME_HOST_WEIGHT_BUDGET' is not read: set BALLAST_HOST_BUDGET" in caplog.text


def test_asking_a_worker_that_does_not_run_says_where_it_was_looked_for(capsys, monkeypatch):
    monkeypatch.setenv("BALLAST_SERVING_INTROSPECTION_PORT", "1")
    assert main.main(["explain"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    assert "ballast-worker plan --config worker.yaml" in capsys.readouterr().out


@pytest.fixture
def configured():
    """What is logged at a level, as text."""
    root, ours = logging.getLogger(), logging.getLogger("ballast_worker")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    stream = io.StringIO()

    def at(level: LogLevel) -> list[str]:
        logs.configure(stream, level=level)
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("ballast_worker.x").log(number, "hello", extra={"event": "e"})
            logging.getLogger("library").log(number, "hello")
        return stream.getvalue().splitlines()

    yield at
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_logs_go_to_the_stream_in_its_form(configured):
    assert json.loads(configured(LogLevel.INFO)[0])["event"] == "e"


@pytest.mark.parametrize("level", LogLevel)
def test_the_level_is_the_least_of_ours_that_is_logged_and_libraries_warn(configured, level):
    told = [json.loads(line) for line in configured(level)]
    every = [str(one) for one in LogLevel]
    assert [line["level"] for line in told if line["logger"] == "ballast_worker.x"] == every[every.index(level) :]
    assert [line["level"] for line in told if line["logger"] == "library"] == ["warning", "error"]
