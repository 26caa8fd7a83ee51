# SPDX-License-Identifier: Apache-2.0
"""The reference of metrics, from the calls in the code that declare them.

A declaration is a call with the metric's name and its meaning as literals next to each other, or a tuple that begins with
both, in a table of metrics of each model. The kind follows from the words `counter`, `gauge` and `histogram` in what is
called; the labels are a tuple or list among the arguments, a name that was assigned one, or `model` where the call is named
`by_model`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from e2e.generators.markdown import code, page, table

_NAME = re.compile(r"(worker|ballast_operator)_[a-z0-9_]+")
_LABELS = {"labels", "labelnames"}
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
        for metric in _of_module(ast.parse(path.read_text(encoding="utf-8")))
    }
    return [found[name] for name in sorted(found)]


def _of_module(tree: ast.Module) -> Iterator[Metric]:
    assigned = {
        target.id: _labels(node.value, {})
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple):
            yield from _metrics(node.elts[:2], "", ("model",))
        elif isinstance(node, ast.Call):
            called = " ".join(ast.unparse(part) for part in (node.func, *node.args[:1]))
            arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in _LABELS)]
            labels = next((found for part in arguments if (found := _labels(part, assigned))), ())
            yield from _metrics(node.args, called, ("model",) if called.startswith("by_model") else labels)


def _metrics(parts: Sequence[ast.expr], called: str, labels: tuple[str, ...]) -> Iterator[Metric]:
    for name, words in pairwise([_text(part) for part in parts]):
        if name and words and _NAME.fullmatch(name):
            kind = _kind(called, name)
            full = f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
            yield Metric(full, kind, labels, words)


def _kind(called: str, name: str) -> str:
    for kind in ("histogram", "summary", "counter", "gauge"):
        if kind in called.lower():
            return kind
    return "counter" if name.endswith("_total") else "gauge"


def _labels(node: ast.expr, assigned: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The texts of a tuple or list; empty for anything else."""
    if isinstance(node, ast.Starred):
        return _labels(node.value, assigned)
    if isinstance(node, ast.Name):
        return assigned.get(node.id, ())
    if isinstance(node, ast.Tuple | ast.List):
        parts = (_labels(part, assigned) or (_text(part),) for part in node.elts)
        return tuple(label for part in parts for label in part if label)
    return ()


def _text(node: ast.expr) -> str:
    """A literal text; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
