# SPDX-License-Identifier: Apache-2.0
"""Dashboards are rendered when they are asked for, and show metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml

OF_TARGETS = {"namespace", "pod"}
VARIABLES = {"$namespace": ".*", "$pod": ".*", "$__rate_interval": "5m"}


@pytest.fixture(scope="module")
def dashboards(chart):
    return {path.name: json.loads(path.read_text()) for path in sorted((chart / "dashboards").glob("*.json"))}


@pytest.fixture(scope="module")
def targets(dashboards):
    return [
        target
        for dashboard in dashboards.values()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


@pytest.fixture(scope="module")
def labels(chart):
    """Labels of each series, by its name as it is scraped."""
    root = chart.parents[1]
    sys.path.insert(0, str(root))
    from e2e.generators.metrics import declared  # noqa: PLC0415 - needs the path

    found = {}
    for metric in (m for side in ("worker_image", "operator") for m in declared(root / side)):
        if metric.kind == "histogram":
            found |= {f"{metric.name}_{part}": {*metric.labels, "le"} for part in ("bucket", "sum", "count")}
        else:
            found[metric.name] = set(metric.labels)
    return found


def metrics(text):
    return re.findall(r"\b(?:worker|ballast_operator)_[a-z_]+", text)


def test_every_metric_exists(dashboards, labels):
    named = {name for dashboard in dashboards.values() for name in metrics(json.dumps(dashboard))}
    assert named <= labels.keys()


def test_every_label_is_one_of_its_metrics(targets, labels):
    for target in targets:
        known = OF_TARGETS.union(*(labels[name] for name in metrics(target["expr"])))
        used = {label for part in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in part.split(", ")}
        used |= set(re.findall(r"([a-z_]+)=~?\"", target["expr"]))
        used |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert used <= known, target


def test_a_series_is_named_by_labels_that_its_expression_keeps(targets):
    for target in targets:
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for kept in re.findall(r"\bby \(([^)]*)\)", target["expr"]):
            assert named <= set(kept.split(", ")), target


def test_every_expression_is_valid(targets, promtool, tmp_path):
    rules = []
    for target in targets:
        expression = target["expr"]
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        rules.append({"record": "shown", "expr": expression, "labels": {"number": str(len(rules))}})
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_uses_the_chosen_data_source_and_variables_that_are_declared(dashboards):
    for dashboard in dashboards.values():
        declared = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard)))
        assert used == declared
        for panel in dashboard["panels"]:
            assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap_and_have_numbers_of_their_own(dashboards):
    for dashboard in dashboards.values():
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24


def test_a_config_map_has_the_dashboards_as_they_are_when_it_is_asked_for(helm, dashboards):
    assert not any(o["kind"] == "ConfigMap" for o in helm.render())
    values = {"monitoring": {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "Ballast"}}}}
    (found,) = [o for o in helm.render(values=values) if o["kind"] == "ConfigMap"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Ballast"}
    assert {name: json.loads(text) for name, text in found["data"].items()} == dashboards
