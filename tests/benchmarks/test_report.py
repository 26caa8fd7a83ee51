# SPDX-License-Identifier: Apache-2.0
"""Benchmarks from the command line."""

from __future__ import annotations

import sys

import pytest

from benchmarks import report


def test_an_option_that_is_cut_short_is_refused_with_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host", "--kee"])
    with pytest.raises(SystemExit, match="2"):
        report.main("host", lambda _: pytest.fail("measured"), description=None)
    assert "unknown option '--kee': did you mean '--keep'?" in capsys.readouterr().err
