# SPDX-License-Identifier: Apache-2.0
"""Rules for the whole suite: under CI=true a skipped test is a failed one, unless it needs a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CLUSTER = Path(__file__).resolve().parents[1] / "e2e" / "cluster" / "cluster"
_DIAGNOSIS = pytest.StashKey[str]()

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and os.environ.get("CI") == "true"
        and not item.get_closest_marker("gpu")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI=true, where every part has to run: {report.longrepr}"
    if report.failed and item.get_closest_marker("cluster") and _DIAGNOSIS not in item.config.stash:
        item.config.stash[_DIAGNOSIS] = f"when {report.when} of {item.nodeid} failed:\n{_diagnosis()}"
    return report


def pytest_terminal_summary(terminalreporter, config):
    """The first failure is the one to understand: those after it may be its consequences."""
    if text := config.stash.get(_DIAGNOSIS, None):
        terminalreporter.section("the cluster at the first failure")
        terminalreporter.write_line(text)


def _diagnosis():
    try:
        done = subprocess.run([CLUSTER, "diagnose"], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "`cluster diagnose` took more than 60 s"
    return f"{done.stdout}{done.stderr}"
