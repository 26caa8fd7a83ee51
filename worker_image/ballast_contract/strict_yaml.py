# SPDX-License-Identifier: Apache-2.0
"""YAML as a plain tree: no aliases, no tags, no duplicate keys, bounded size and depth.

Aliases are how a small document becomes a huge tree, and a duplicate key is one that two readers understand differently.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 16
"""Levels of nesting; a manifest needs five."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))


class StrictYamlError(ValueError):
    """A document that is not read; the message names file, line and rule."""


def parse(data: bytes, *, file: str, limit: int) -> Any:
    """The one document in `data` as dicts, lists and scalars; `file` names it in messages.

    Raises:
        StrictYamlError: longer than `limit` bytes, not UTF-8, not YAML, more or less than one document,
            deeper than `MAX_DEPTH`, an alias, an anchor, a tag, a key that is not text, or a key given twice.
    """
    if len(data) > limit:
        raise StrictYamlError(f"{file}: {len(data)} bytes; at most {limit} are read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictYamlError(f"{file}: byte {error.start} is not UTF-8") from error
    try:
        _check_events(text, file)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _construct(loader, node, file)
        finally:
            loader.dispose()
    except StrictYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise StrictYamlError(f"{file}: not YAML: {_one_line(error)}") from error


def _check_events(text: str, file: str) -> None:
    # Events come one by one from a parser without recursion, so that depth and aliases are refused before a tree is built.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise StrictYamlError(f"{file}: line {line}: anchors (&) and aliases (*) are refused; write the value out")
        if (tag := getattr(event, "tag", None)) is not None:
            raise StrictYamlError(f"{file}: line {line}: the tag {tag!r} is refused; write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise StrictYamlError(f"{file}: line {line}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _construct(loader: Any, node: yaml.Node, file: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag != "tag:yaml.org,2002:str":
                raise StrictYamlError(
                    f"{file}: line {line}: the key {_source(key_node)} is not text; put it in quotes if it is a name",
                )
            if key_node.value in result:
                raise StrictYamlError(f"{file}: line {line}: the key {key_node.value!r} is given twice")
            result[key_node.value] = _construct(loader, value_node, file)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, file) for item in node.value]
    if node.tag not in _SCALARS:
        raise StrictYamlError(
            f"{file}: line {node.start_mark.line + 1}: {_source(node)} is not plain text or a number; put it in quotes",
        )
    return loader.construct_object(node)


def _source(node: yaml.Node) -> str:
    return repr(node.value[:80]) if isinstance(node, yaml.ScalarNode) else "of a list or mapping"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
