# SPDX-License-Identifier: Apache-2.0
"""The rules of the operator's roles, from the list of what it does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ballast_operator.cluster.permissions import PERMISSIONS, Permission

_HEADER = "{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}\n{{- /* Generated from ballast_operator.cluster.permissions by `make generate`. */ -}}\n"


def outputs(root: Path) -> dict[str, str]:  # noqa: ARG001 - every generator has this signature
    """The chart's templates of rules by path."""
    parts = [
        _define("ballast.watchedRules", (p for p in PERMISSIONS if p.scope == "watched")),
        _define("ballast.ownRules", (p for p in PERMISSIONS if p.scope == "own")),
    ]
    return {"charts/ballast/templates/_rules.tpl": _HEADER + "\n".join(parts)}


def _define(name: str, permissions: Iterable[Permission]) -> str:
    grouped: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for permission in permissions:
        grouped.setdefault((permission.group, permission.only, permission.verbs), []).append(permission.resource)
    rules = [
        f'- apiGroups: ["{group}"]\n  resources: [{", ".join(resources)}]\n'
        + (f"  resourceNames: [{', '.join(only)}]\n" if only else "")
        + f"  verbs: [{', '.join(verbs)}]\n"
        for (group, only, verbs), resources in grouped.items()
    ]
    return f'{{{{- define "{name}" -}}}}\n{"".join(rules)}{{{{- end -}}}}\n'
