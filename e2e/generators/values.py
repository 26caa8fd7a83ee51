# SPDX-License-Identifier: Apache-2.0
"""The chart's values schema and their reference, from values.yaml and the comments in it.

The comment above a key is its description. A line `# @schema {...}` in it is JSON that adds to the key's schema. A list is
`{"items": ...}`. A map is closed to other keys unless it says `"open": "string"` or `"open": "quantity"`, for its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.generators.markdown import code, page, table

_CHART = "charts/ballast"
_ANNOTATION = "@schema "
_OPEN: dict[str, Any] = {"string": "string", "quantity": ["string", "integer"]}
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One key of values.yaml."""

    path: str
    default: Any
    description: str
    annotation: dict[str, Any]
    children: tuple[Value, ...]

    @property
    def key(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator[Value]:
        """The value and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value."""
        annotation = {key: value for key, value in self.annotation.items() if key != "open"}
        schema: dict[str, Any] = {"description": self.description, "type": _TYPES[type(self.default)], **annotation}
        if isinstance(self.default, dict):
            return schema | self._keys()
        if isinstance(self.default, str) and not {"enum", "pattern", "maxLength"} & schema.keys():
            schema["maxLength"] = 512
        return schema

    def _keys(self) -> dict[str, Any]:
        if "open" in self.annotation:
            return {"additionalProperties": {"type": _OPEN[self.annotation["open"]]}}
        properties = {child.key: child.schema() for child in self.children}
        return {"properties": properties | self.annotation.get("properties", {}), "additionalProperties": False}


def outputs(root: Path) -> dict[str, str]:
    """The schema and the reference page by path."""
    values = read(root / _CHART / "values.yaml")
    return {f"{_CHART}/values.schema.json": _schema(values), "docs/reference/chart-values.md": _page(values)}


def read(path: Path) -> list[Value]:
    """The top keys of a values file with everything below them."""
    text = path.read_text(encoding="utf-8")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise TypeError(f"{path} is no mapping")
    return list(_children(node, "", text.splitlines()))


def _children(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        description, annotation = _comment(lines, key.start_mark.line)
        here = f"{path}.{key.value}" if path else str(key.value)
        if not description:
            raise ValueError(f"values.yaml: {here} has no description above it")
        open_map = "open" in annotation
        nested = isinstance(value, yaml.MappingNode) and not open_map
        yield Value(
            path=here,
            default=_plain(value),
            description=description,
            annotation=annotation,
            children=tuple(_children(value, here, lines)) if nested else (),
        )


def _comment(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    above: list[str] = []
    while line and lines[line - 1].strip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].strip().removeprefix("#").strip())
    words = [text for text in above if not text.startswith(_ANNOTATION)]
    annotations = [json.loads(text.removeprefix(_ANNOTATION)) for text in above if text.startswith(_ANNOTATION)]
    return " ".join(words), {key: value for annotation in annotations for key, value in annotation.items()}


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _schema(values: list[Value]) -> str:
    properties = {value.key: value.schema() for value in values}
    properties["global"] = {"description": "Helm's own map of values that parent charts share.", "type": "object"}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Ballast chart",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return json.dumps(schema, indent=2) + "\n"


def _page(values: list[Value]) -> str:
    rows = [
        (code(value.path), code(json.dumps(value.default)) if not value.children else "", value.description)
        for top in values
        for value in top.walk()
    ]
    return page(
        "Chart values",
        "What `helm install --set` and `--values` may say. A key that is not in this list is refused, at any depth, and Helm"
        " prints it. `global` is accepted and not read.",
        table(("Key", "Default", "Meaning"), rows),
        source="charts/ballast/values.yaml",
    )
