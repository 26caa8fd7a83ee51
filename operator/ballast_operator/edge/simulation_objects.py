# SPDX-License-Identifier: Apache-2.0
"""The objects that `ballast-simulate` is given: YAML or JSON as kubectl prints it and as people write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pydantic
import yaml

from ballast_contract import validation
from ballast_operator.api.common import API_VERSION
from ballast_operator.edge.simulation_input import InputError, text

S = TypeVar("S", bound=pydantic.BaseModel)

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a file.

    Args:
        where: What messages call it: file, kind and name.
        name: Its metadata.name.
        namespace: Its metadata.namespace; empty where left out.
        body: All of it.
    """

    where: str
    name: str
    namespace: str
    body: Mapping[str, Any]

    def read(self, model: type[S], *keys: str) -> S:
        """The part below these keys; where there is none, what is meant by leaving it out.

        Raises:
            InputError: it breaks a rule; the message has every fault.
        """
        found, where = self.body, self.where
        for key in keys:
            where = f"{where}: {key}" if found is self.body else f"{where}.{key}"
            found = _mapping(found.get(key), where)
        try:
            return model.model_validate(found)
        except pydantic.ValidationError as error:
            raise InputError(f"{where}: {validation.describe(error, model)}") from error


def objects(path: str, kind: str) -> list[Entry]:
    """The objects of a kind in a file of documents and Lists of them; those of other kinds are passed over.

    Raises:
        InputError: it cannot be read, holds something that is no object, or nothing of this kind.
    """
    found, kinds = [], set()
    for where, body in _bodies(path):
        if not isinstance(body.get("kind"), str):
            raise InputError(f"{where}: kind is {_shown(body.get('kind'))}: write what `kubectl get -o yaml` prints")
        kinds.add(body["kind"])
        if body["kind"] == kind:
            found.append(_entry(path, where, body))
    if not found:
        raise InputError(
            f"{path} has no {kind}; it has {', '.join(sorted(kinds)) or 'nothing'}: "
            f"write what `kubectl get {kind.lower()}s.ballast.dev -o yaml` prints in the namespace of the pool"
        )
    return found


def _entry(path: str, where: str, body: Mapping[str, Any]) -> Entry:
    kind, version = body["kind"], body.get("apiVersion", API_VERSION)
    if version != API_VERSION:
        raise InputError(f"{where}: apiVersion of this {kind} is {_shown(version)}: write {API_VERSION}")
    metadata = _mapping(body.get("metadata"), f"{where}: metadata")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: metadata.name of this {kind} is {_shown(name)}: write its name")
    if not isinstance(namespace, str | None):
        raise InputError(f"{where}: metadata.namespace of {kind} '{name}' is {_shown(namespace)}: write a name")
    return Entry(f"{path}, {kind} '{name}'", name, namespace or "", body)


def _bodies(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object, with what messages call its place."""
    for number, document in enumerate(_documents(path), 1):
        where = f"{path} document {number}"
        body = _mapping(document, where)
        if "items" in body:
            items = [] if body["items"] is None else body["items"]
            if not isinstance(items, list):
                raise InputError(f"{where}: items is {_shown(items)}: write a list of objects")
            for place, item in enumerate(items, 1):
                yield f"{where} item {place}", _mapping(item, f"{where} item {place}")
        elif document is not None:
            yield where, body


def _documents(path: str) -> Iterator[Any]:
    given = text(path)
    try:
        loader = _Loader(given)
        while loader.check_node():
            node = loader.get_node()
            _refuse_duplicates(node, path)
            yield loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{path}{line} is no YAML: {getattr(error, 'problem', error)}") from error
    except (ValueError, RecursionError) as error:  # the loader lets those of Python's own types through
        raise InputError(
            f"{path} has a number or a date that cannot be read ({error}): correct it, or put it in quotes"
        ) from error


def _refuse_duplicates(root: yaml.Node, path: str) -> None:
    """Two readers take a key that is given twice differently."""
    waiting, seen = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        children = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in keys:
                    raise InputError(f"{path} line {key.start_mark.line + 1}: '{key.value}' is given twice: keep one")
                keys.add(key.value)
            children = [value for _, value in node.value]
        fresh = [child for child in children if id(child) not in seen]  # an alias may come back to its anchor
        seen.update(map(id, fresh))
        waiting += fresh


def _mapping(given: Any, where: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InputError(
            f"{where} is {_shown(given)}, and no keys with values: write what `kubectl get -o yaml` prints"
        )
    return given


def _shown(given: Any) -> str:
    return "left out" if given is None else "a list" if isinstance(given, list) else f"'{str(given)[:80]}'"
