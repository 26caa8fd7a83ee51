# SPDX-License-Identifier: Apache-2.0
"""The chart's Grafana dashboards, from the lists of panels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from e2e.generators.panels import OPERATOR, WORKERS, Panel

_ACROSS: Final = 3
_WIDTH: Final = 24 // _ACROSS
_HEIGHT: Final = 8

_SHORT: Final = {
    "{W": '{namespace=~"$namespace", pod=~"$pod"',
    "{N": '{namespace=~"$namespace"',
    "[R]": "[$__rate_interval]",
}

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def outputs(root: Path) -> dict[str, str]:  # noqa: ARG001 - as the other generators
    """The dashboards by path."""
    pool = _variable("namespace", "Namespace", "label_values(ballast_operator_models, namespace)")
    namespace = _variable("namespace", "Namespace", "label_values(worker_ready, namespace)")
    pod = _variable("pod", "Worker", 'label_values(worker_ready{namespace=~"$namespace"}, pod)')
    return {
        "charts/ballast/dashboards/ballast-workers.json": _dashboard(
            "ballast-workers", "Ballast / Workers", WORKERS, (namespace, pod)
        ),
        "charts/ballast/dashboards/ballast-operator.json": _dashboard(
            "ballast-operator", "Ballast / Operator", OPERATOR, (pool,)
        ),
    }


def _dashboard(uid: str, title: str, rows: Mapping[str, Sequence[Panel]], variables: Sequence[Any]) -> str:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "uid": uid,
        "title": title,
        "tags": ["ballast"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": list(_panels(rows)),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Mapping[str, Sequence[Panel]]) -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in rows.items():
        number += 1
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            below, beside = divmod(index, _ACROSS)
            place = {"x": beside * _WIDTH, "y": top + below * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, **_panel(panel), "gridPos": place}
        top += (len(panels) + _ACROSS - 1) // _ACROSS * _HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
        options["legend"] = {"displayMode": "list", "placement": "bottom"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": _full(expression), "legendFormat": name}
            for index, (expression, name) in enumerate(panel.series.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _full(expression: str) -> str:
    for short, full in _SHORT.items():
        expression = expression.replace(short, full)
    return expression
