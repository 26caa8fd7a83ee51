# SPDX-License-Identifier: Apache-2.0
"""What has to be true before anything is reconciled: definitions installed and current, rights granted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import pydantic

from ballast_contract import names, validation
from ballast_operator.api.inferencemodel import InferenceModelSpec, InferenceModelStatus
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.api.weightbudget_status import WeightBudgetStatus
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.permissions import OPTIONAL, PERMISSIONS, Permission
from ballast_operator.cluster.resources import ACCESS_REVIEWS, BUDGETS, MODELS, Resource

logger = logging.getLogger(__name__)


_PARTS: Final[tuple[tuple[Resource, Mapping[str, type[pydantic.BaseModel]]], ...]] = (
    (MODELS, {"spec": InferenceModelSpec, "status": InferenceModelStatus}),
    (BUDGETS, {"spec": WeightBudgetSpec, "status": WeightBudgetStatus}),
)


class PreflightError(Exception):
    """The operator cannot work here; the message says what to do."""


async def check_rights(client: Client, namespaces: Sequence[str], lease_namespace: str) -> None:
    """Ask the API server for every right that the operator uses.

    Raises:
        PreflightError: some are missing; all of them are named.
    """
    wanted: list[tuple[Permission, str, str | None]] = []
    for permission in PERMISSIONS:
        if permission.resource in OPTIONAL:
            continue
        scopes: Sequence[str | None] = [lease_namespace] if permission.scope == "own" else (namespaces or [None])
        wanted += [(permission, verb, scope) for scope in scopes for verb in permission.verbs]
    answers = await asyncio.gather(*(_allowed(client, *each) for each in wanted))
    missing = [_spell(*each) for each, allowed in zip(wanted, answers, strict=True) if not allowed]
    if missing:
        raise PreflightError(
            "the service account lacks rights that the operator needs: "
            + "; ".join(missing)
            + " (the chart grants them with rbac.create; see its Role or ClusterRole)"
        )


async def check_definitions(client: Client) -> list[str]:
    """Look at the definitions that the API server has.

    Returns:
        Fields of this release that the installed definitions lack, in words; nothing when they are current.

    Raises:
        PreflightError: a definition is not installed.
    """
    try:
        document = await client.get_path(f"/openapi/v3/apis/{names.API_GROUP}/{names.API_VERSION}")
    except errors.NotFound as error:
        raise PreflightError(
            f"the definitions of {names.API_GROUP}/{names.API_VERSION} are not installed: apply crds/*.yaml, or install "
            "the chart with crds.install"
        ) from error
    schemas = document.get("components", {}).get("schemas", {})
    stale: list[str] = []
    for resource, parts in _PARTS:
        schema = next((s for s in schemas.values() if _is(s, resource.kind)), None)
        if schema is None:
            raise PreflightError(
                f"the definition {resource.plural}.{resource.group} is not installed: apply crds/*.yaml"
            )
        for part, model in parts.items():
            installed = schema.get("properties", {}).get(part, {})
            stale += [f"{resource.kind} {part}.{path}" for path in _missing(model, installed)]
    if stale:
        logger.warning(
            "the installed definitions are of another release and lack %s: apply crds/*.yaml of this one",
            ", ".join(stale),
        )
    return stale


async def _allowed(client: Client, permission: Permission, verb: str, namespace: str | None) -> bool:
    attributes = {
        **({"name": permission.only[0]} if permission.only else {}),
        "group": permission.group,
        "resource": permission.plural,
        "subresource": permission.subresource,
        "verb": verb,
        **({"namespace": namespace} if namespace else {}),
    }
    review = {"metadata": {}, "spec": {"resourceAttributes": attributes}}
    answer = await client.create(ACCESS_REVIEWS, review)
    return bool(answer.get("status", {}).get("allowed"))


def _spell(permission: Permission, verb: str, namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    which = f" named {', '.join(permission.only)}" if permission.only else ""
    return f"{verb} {permission.resource}{'.' + permission.group if permission.group else ''}{which} {where}"


def _is(schema: Object, kind: str) -> bool:
    versions = schema.get("x-kubernetes-group-version-kind", ())
    return any(v.get("kind") == kind and v.get("group") == names.API_GROUP for v in versions)


def _missing(model: type[pydantic.BaseModel], schema: Object) -> list[str]:
    """Paths of the model's fields that a schema lacks; those of a list's items as in `workers[].name`."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    found: list[str] = []
    properties = schema.get("properties", {})
    for key, field in validation.fields_of(model).items():
        if key not in properties:
            found.append(key)
        elif (inner := validation.model_of(field.annotation)) is not None:
            items = properties[key].get("items")
            below = _missing(inner, properties[key] if items is None else items)
            found += [f"{key}{'' if items is None else '[]'}.{path}" for path in below]
    return found
