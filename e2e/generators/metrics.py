# SPDX-License-Identifier: Apache-2.0
"""The reference of metrics, from the calls in the code that declare them.

A declaration is a call with the metric's name and its meaning as literals next to each other, or a tuple that begins with
both, in a table of metrics of each model. The kind follows from the words `counter`, `gauge` and `histogram` in what is
called; the labels are a literal argument, or `model` where the call is named `_by_model`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from e2e.generators.markdown import code, page, table

_NAME = re.compile(r"(worker|ballast_operator)_[a-z0-9_]+")
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
    """Every metric that the sources below a folder declare, sorted by name."""
    found = {
        metric.name: metric
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for metric in _metrics(node)
    }
    return [found[name] for name in sorted(found)]


def _metrics(node: ast.AST) -> Iterator[Metric]:
    if isinstance(node, ast.Tuple):
        parts, called, keywords = node.elts[:2], "", {}
    elif isinstance(node, ast.Call):
        parts, called = node.args, " ".join(ast.unparse(part) for part in (node.func, *node.args[:1]))
        keywords = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    else:
        return
    for name, words in pairwise([_literal(part) for part in parts]):
        if isinstance(name, str) and isinstance(words, str) and _NAME.fullmatch(name):
            kind = _kind(called, name)
            full = f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
            yield Metric(full, kind, _labels(node, called, keywords), words)


def _kind(called: str, name: str) -> str:
    for kind in ("histogram", "summary", "counter", "gauge"):
        if kind in called.lower():
            return kind
    return "counter" if name.endswith("_total") else "gauge"


def _labels(node: ast.Tuple | ast.Call, called: str, keywords: dict[str | None, object]) -> tuple[str, ...]:
    if isinstance(node, ast.Tuple) or called.startswith("_by_model"):
        return ("model",)
    given = [keywords.get("labels"), keywords.get("labelnames"), *(_literal(part) for part in node.args)]
    lists = [part for part in given if isinstance(part, tuple | list)]
    return tuple(str(label) for label in lists[0]) if lists else ()


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
