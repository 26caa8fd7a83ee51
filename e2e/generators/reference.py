# SPDX-License-Identifier: Apache-2.0
"""The reference of both kinds, of the worker's configuration and of the reasons."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic

from ballast_contract import config, names, reasons
from ballast_operator.api import crd
from e2e.generators.markdown import code, page, prose, table

_EXAMPLES = {"InferenceModel": "models.yaml", "WeightBudget": "budget.yaml"}


def outputs(root: Path) -> dict[str, str]:
    """The pages by path."""
    pages = {
        f"docs/reference/{d['spec']['names']['singular']}.md": _kind(root, d) for d in crd.all_definitions().values()
    }
    return pages | {"docs/reference/worker-config.md": _worker_config(), "docs/reference/reasons.md": _reasons()}


def _kind(root: Path, definition: dict[str, Any]) -> str:
    spec = definition["spec"]
    kind, version = spec["names"]["kind"], spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    example = (root / "e2e" / "samples" / _EXAMPLES[kind]).read_text(encoding="utf-8").split("---\n")[0]
    columns = [
        (column["name"].upper(), code(column["jsonPath"]), "only with `-o wide`" if column.get("priority") else "")
        for column in version["additionalPrinterColumns"]
    ]
    rules = [f"- {prose(message)}" for message in _rules(schema)]
    lead = (
        f"{schema['description']} `{spec['group']}/{version['name']}`, namespaced; "
        f"`kubectl get {spec['names']['plural']}.{spec['group']}`, short `{spec['names']['shortNames'][0]}`."
    )
    return page(
        kind,
        lead,
        f"```yaml\n{example.strip()}\n```",
        "## spec\n\n" + _fields(schema["properties"]["spec"]),
        "## Rules\n\nThe API server refuses an object that breaks one of these, and says which value is wrong:\n\n"
        + "\n".join(rules),
        "## status\n\nEverything here was observed. What is not known is absent.\n\n"
        + _fields(schema["properties"]["status"]),
        "## Columns\n\n" + table(("Column", "From", ""), columns),
        source="ballast_operator.api",
    )


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        (code(path), _type(field), code(_default(field)), field["description"]) for path, field in _walk(schema, "")
    ]
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, {**field, "required": name in required}
        inner = field.get("items", field)
        yield from _walk(inner, f"{here}[]" if "items" in field else here)


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        kind = ", ".join(code(str(value)) for value in field["enum"])
    elif field.get("x-kubernetes-int-or-string"):
        kind = "size"
    elif field["type"] == "integer":
        kind = f"{field['minimum']} to {field['maximum']}" if "minimum" in field else "integer"
    elif field["type"] == "array":
        kind = f"list, at most {field['maxItems']}"
    elif "additionalProperties" in field:
        kind = "map"
    else:
        kind = field["type"]
    return f"{kind}; required" if field["required"] else kind


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "" if default is None or default == {} else json.dumps(default).strip('"')


def _rules(schema: dict[str, Any]) -> list[str]:
    found = [(path, rule["message"]) for path, field in _walk(schema, "") for rule in _validations(field)]
    messages = [f"`{path}` {message}" if message.startswith("must") else f"{message}" for path, message in found]
    return [*(rule["message"] for rule in schema["x-kubernetes-validations"]), *dict.fromkeys(messages)]


def _validations(field: dict[str, Any]) -> list[dict[str, str]]:
    inner = field.get("additionalProperties", {})
    return [
        *field.get("x-kubernetes-validations", []),
        *field.get("items", {}).get("x-kubernetes-validations", []),
        *(inner.get("x-kubernetes-validations", []) if isinstance(inner, dict) else []),
    ]


def _worker_config() -> str:
    rows = [
        (code(path), code(variable), code(default), words)
        for path, variable, default, words in _settings(config.WorkerConfig, ())
    ]
    lead = (
        "The worker reads a YAML file, then the environment over it. The operator writes the file for the workers of a "
        "WeightBudget; a worker without an operator reads yours. Sizes are written as in `48g`, `1.5t`, `512m` or `60Gi`, in "
        "any case and always binary. An unknown key or variable is refused, with the nearest one that exists."
    )
    return page(
        "Worker configuration",
        lead,
        table(("Key", "Environment", "Default", "Meaning"), rows),
        source="ballast_contract.config",
    )


def _settings(section: type[pydantic.BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
    words = attribute_docs(section)
    for name, field in section.model_fields.items():
        here = (*path, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
            yield from _settings(field.annotation, here)
            continue
        variable = names.ENV_PREFIX + "_".join(re.sub(r"(?<!^)(?=[A-Z])", "_", part) for part in here).upper()
        default = field.get_default(call_default_factory=True)
        shown = json.dumps(default, default=lambda value: list(value) if isinstance(value, tuple) else str(value))
        yield ".".join(here), variable, shown.strip('"'), words.get(name, "")


def _reasons() -> str:
    source = inspect.getsource(reasons.Reason)
    sections: list[str] = []
    blocks = re.split(r"^    # (.+)$", source, flags=re.MULTILINE)[1:]
    for title, body in zip(blocks[::2], blocks[1::2], strict=True):
        members = re.findall(
            r'^    [A-Z_]+ = "(\w+)"(?:  # [^\n]+)?\n    """(.*?)"""', body, flags=re.MULTILINE | re.DOTALL
        )
        sections.append(f"## {title}\n\n" + table(("Reason", "Meaning"), ((code(n), words) for n, words in members)))
    listed = sum(section.count("\n| `") for section in sections)
    if listed != len(reasons.Reason):
        raise ValueError(f"{listed} of {len(reasons.Reason)} reasons have a heading and a docstring")
    return page(
        "Reasons",
        "The one word that conditions, Events, refusals and logs give for what is so. The list is closed: nothing else "
        "appears there.",
        *sections,
        source="ballast_contract.reasons",
    )


def attribute_docs(owner: type) -> dict[str, str]:
    """The docstrings below a class's attributes, by attribute."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"{owner} is no class")
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = following.value.value
    return found
