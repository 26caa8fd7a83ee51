# SPDX-License-Identifier: Apache-2.0
"""The reference of metrics, from the calls in the code that declare them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.generators.markdown import code, page, table

_KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "Summary": "summary",
    "Info": "info",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "InfoMetricFamily": "info",
}
_SIDES = (("Workers", "worker_image/ballast_worker"), ("Operator", "operator/ballast_operator"))


@dataclass(frozen=True)
class Metric:
    """A family of series."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def outputs(root: Path) -> dict[str, str]:
    """The page by path."""
    sections = []
    for title, folder in _SIDES:
        rows = [
            (code(metric.name), metric.kind, ", ".join(code(label) for label in metric.labels), metric.help)
            for metric in declared(root / folder)
        ]
        sections.append(f"## {title}\n\n" + table(("Name", "Type", "Labels", "Meaning"), rows))
    lead = (
        "Workers and operator serve these at `/metrics`: workers on the port `metrics` (8002), the operator on its port "
        "`metrics` (8080). What is not known is absent, never zero. Bytes are bytes, seconds are seconds."
    )
    return {"docs/reference/metrics.md": page("Metrics", lead, *sections, source="the code that declares them")}


def declared(folder: Path) -> list[Metric]:
    """Every metric that the sources below a folder declare with a literal name, sorted by name."""
    found = {
        metric.name: metric
        for path in sorted(folder.rglob("*.py"))
        for metric in _calls(ast.parse(path.read_text(encoding="utf-8")))
    }
    return [found[name] for name in sorted(found)]


def _calls(tree: ast.AST) -> Iterator[Metric]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [_literal(argument) for argument in node.args]
        if function not in _KINDS or not texts or not isinstance(texts[0], str):
            continue
        kind = _KINDS[function]
        named = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        labels = named.get("labelnames") or named.get("labels") or (texts[2] if len(texts) > 2 else ())
        labels = labels if isinstance(labels, tuple | list) else ()
        name = texts[0] if kind != "counter" or texts[0].endswith("_total") else f"{texts[0]}_total"
        words = named.get("documentation") or (texts[1] if len(texts) > 1 else "")
        yield Metric(name, kind, tuple(str(label) for label in labels), str(words))


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
