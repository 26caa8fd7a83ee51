# SPDX-License-Identifier: Apache-2.0
"""The kinds that the operator reads and writes, and where the API server serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_contract import names

MANAGED_BY: Final = "ballast-operator"
"""Field manager, and the value of `app.kubernetes.io/managed-by` on everything that the operator makes."""

MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_SELECTOR: Final = f"{MANAGED_LABEL}={MANAGED_BY}"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of the API, all of them namespaced unless said otherwise."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Group and version as an object spells them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The URL path of the collection (no name) or of one object. No namespace: all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


MODELS: Final = Resource(names.API_GROUP, names.API_VERSION, "inferencemodels", "InferenceModel")
BUDGETS: Final = Resource(names.API_GROUP, names.API_VERSION, "weightbudgets", "WeightBudget")
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

WATCHED: Final = (MODELS, BUDGETS, PODS, SERVICES, ENDPOINT_SLICES, CONFIG_MAPS, DISRUPTION_BUDGETS)
"""Kinds that are listed, watched and swept; of the built-in ones only what carries our label."""


def selector_of(resource: Resource) -> str | None:
    """The label selector with which a watched kind is listed and watched."""
    return None if resource in (MODELS, BUDGETS) else MANAGED_SELECTOR
