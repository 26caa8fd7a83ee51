# SPDX-License-Identifier: Apache-2.0
"""Rules for the whole suite: under CI=true a skipped test is a failed one, unless it needs a GPU."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

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
    return report
