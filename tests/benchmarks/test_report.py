# SPDX-License-Identifier: Apache-2.0
"""Benchmarks from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import report


def test_an_option_that_is_cut_short_is_refused_with_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host", "--kee"])
    with pytest.raises(SystemExit, match="2"):
        report.main("host", lambda _: pytest.fail("measured"), description=None)
    assert "unknown option '--kee': did you mean '--keep'?" in capsys.readouterr().err


def test_a_report_of_failures_is_printed_and_written_and_ends_with_1(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["host", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        report.main("host", lambda _: {"half": 1, "failures": {"other": "ended"}}, description=None)
    assert json.loads(capsys.readouterr().out) == {"half": 1, "failures": {"other": "ended"}}
    assert json.loads((tmp_path / "host.json").read_text())["failures"] == {"other": "ended"}
