# SPDX-License-Identifier: Apache-2.0
"""Benchmarks from the command line."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from benchmarks import report

COUNTED = {
    "churn": "--loads",
    "eviction": "--cases",
    "host": "--gib",
    "operator": "--models",
    "placement": "--seeds",
    "policy": "--requests",
    "requests": "--seconds",
}
MAIN = dict.fromkeys(("operator", "requests"), ".__main__")


def test_an_option_that_is_cut_short_is_refused_with_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host", "--kee"])
    with pytest.raises(SystemExit, match="2"):
        report.main("host", lambda _: pytest.fail("measured"), description=None)
    assert "unknown option '--kee': did you mean '--keep'?" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["churn", "eviction", "host", "operator", "placement", "policy", "requests"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "two"])
def test_a_number_that_is_not_above_zero_is_refused_before_anything_is_measured(monkeypatch, capsys, benchmark, value):
    option = COUNTED[benchmark]
    module = importlib.import_module(f"benchmarks.{benchmark}" + MAIN.get(benchmark, ""))
    monkeypatch.setattr(sys, "argv", [benchmark, f"{option}={value}"])
    with pytest.raises(SystemExit, match="2"):
        report.main(benchmark, lambda _: pytest.fail("measured"), description=None, arguments=module._arguments)
    assert f"argument {option}: '{value}' is not a number above 0" in capsys.readouterr().err


def test_a_report_of_failures_is_printed_and_written_and_ends_with_1(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["host", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        report.main("host", lambda _: {"half": 1, "failures": {"other": "ended"}}, description=None)
    assert json.loads(capsys.readouterr().out) == {"half": 1, "failures": {"other": "ended"}}
    assert json.loads((tmp_path / "host.json").read_text())["failures"] == {"other": "ended"}
