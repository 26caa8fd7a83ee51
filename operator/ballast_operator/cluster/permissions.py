# SPDX-License-Identifier: Apache-2.0
"""What the operator may do, as data: the chart's roles are tested against it and the start checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ballast_contract import names
from ballast_operator.cluster import resources
from ballast_operator.cluster.resources import Resource


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource, in the watched namespaces or only in the operator's own.

    `only` names the objects that they are limited to; nothing means all.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    scope: Literal["watched", "own"] = "watched"
    only: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """The resource without its subresource."""
        return self.resource.partition("/")[0]

    @property
    def subresource(self) -> str:
        """The subresource; empty for the object itself."""
        return self.resource.partition("/")[2]


_READ: Final = ("get", "list", "watch")
_OWN: Final = (*_READ, "create", "patch", "delete")


def _of(resource: Resource, verbs: tuple[str, ...], sub: str = "") -> Permission:
    return Permission(resource.group, f"{resource.plural}/{sub}" if sub else resource.plural, verbs)


PERMISSIONS: Final = (
    _of(resources.MODELS, ("list", "watch")),
    _of(resources.MODELS, ("patch",), "status"),
    _of(resources.MODELS, ("update",), "finalizers"),
    _of(resources.BUDGETS, (*_READ, "patch")),
    _of(resources.BUDGETS, ("patch",), "status"),
    _of(resources.BUDGETS, ("update",), "finalizers"),
    _of(resources.PODS, (*_READ, "create", "delete")),
    _of(resources.SERVICES, _OWN),
    _of(resources.CONFIG_MAPS, _OWN),
    _of(resources.ENDPOINT_SLICES, _OWN),
    Permission(resources.ENDPOINT_SLICES.group, "endpointslices/restricted", ("create",)),
    _of(resources.DISRUPTION_BUDGETS, (*_READ, "create", "patch")),
    _of(resources.HTTP_ROUTES, ("get", "create", "patch", "delete")),
    _of(resources.EVENTS, ("create",)),
    _of(resources.CLAIMS, ("get",)),
    Permission("", resources.SECRETS.plural, ("get", "update"), only=(names.WORKER_CERTIFICATE,)),
    Permission("", resources.SECRETS.plural, ("create",)),
    Permission(resources.PODS.group, resources.PODS.plural, ("get", "create", "delete"), scope="own"),
    Permission(resources.LEASES.group, resources.LEASES.plural, ("get", "create", "update"), scope="own"),
    Permission("", resources.SECRETS.plural, ("get", "update"), scope="own", only=(names.OPERATOR_CERTIFICATE,)),
    Permission("", resources.SECRETS.plural, ("create",), scope="own"),
)
"""Secrets are read and changed by name only; `create` cannot be limited to a name, and reads nothing.

`finalizers` and `endpointslices/restricted` are asked for by OpenShift and by clusters with the
OwnerReferencesPermissionEnforcement plugin; elsewhere they are not needed and harmless."""

OPTIONAL: Final = frozenset(
    {"endpointslices/restricted", "inferencemodels/finalizers", "weightbudgets/finalizers", "httproutes"}
)
"""Resources whose absence the start does not complain about."""
