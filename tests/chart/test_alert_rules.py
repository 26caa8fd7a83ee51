# SPDX-License-Identifier: Apache-2.0
"""Alerts are valid, fire and clear, and look at metrics that exist."""

from __future__ import annotations

import re
import subprocess
import sys

import yaml


def test_the_rules_are_valid(promtool, chart):
    done = subprocess.run(
        [promtool, "check", "rules", "rules/ballast.yaml"], cwd=chart, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_and_clears(promtool, chart):
    done = subprocess.run(
        [promtool, "test", "rules", "tests/alerts.yaml"], cwd=chart, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_both_ways(chart):
    groups = yaml.safe_load((chart / "rules" / "ballast.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    cases = [
        (case["alertname"], bool(case["exp_alerts"]), case["eval_time"])
        for test in yaml.safe_load((chart / "tests" / "alerts.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for alert in alerts:
        fired = [fires for name, fires, _ in cases if name == alert]
        assert True in fired
        assert fired.index(True) < len(fired) - 1 - fired[::-1].index(False), f"{alert} never clears after it fired"


def test_alerts_look_at_metrics_that_are_declared(chart):
    root = chart.parents[1]
    sys.path.insert(0, str(root))
    from e2e.generators.metrics import declared  # noqa: PLC0415 - needs the path

    known = {m.name for side in ("worker_image", "operator") for m in declared(root / side)}
    groups = yaml.safe_load((chart / "rules" / "ballast.yaml").read_text())["groups"]
    used = {
        name
        for group in groups
        for rule in group["rules"]
        for name in re.findall(r"\b(?:worker|ballast_operator)_[a-z_]+", rule["expr"])
    }
    assert used <= known
