# SPDX-License-Identifier: Apache-2.0
"""The worker pods of a WeightBudget as a template, with the hashes that tell when it changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ballast_contract import names
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.host_memory import Place
from ballast_operator.reconcile.pod_spec import pod_spec
from ballast_operator.reconcile.worker_config import CONFIG_FILE, render_config, worker_config


@dataclass(frozen=True, slots=True)
class Template:
    """What worker pods of a WeightBudget look like.

    `spec_hash` covers what the user wrote: another one means that pods have to be replaced. `template_hash` covers all
    that a pod runs, also what a new release of the operator does differently: pods are then out of date, and stay.
    """

    config_name: str
    config_text: str
    metadata: Object
    pod_spec: Object
    spec_hash: str
    template_hash: str

    @property
    def shares_host_pool(self) -> bool:
        """Whether its pods mount host memory of their node."""
        return "initContainers" in self.pod_spec

    def pod(self, name: str, *, namespace: str, owner: list[dict[str, Any]], update_token: str) -> Object:
        """A new pod."""
        annotations = {
            **self.metadata["annotations"],
            naming.ANNOTATION_SPEC_HASH: self.spec_hash,
            names.ANNOTATION_TEMPLATE_HASH: self.template_hash,
            naming.ANNOTATION_UPDATE_TOKEN: update_token,
        }
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": self.metadata["labels"],
            "annotations": annotations,
            "ownerReferences": owner,
        }
        return {"metadata": metadata, "spec": self.pod_spec}

    def config_map(self, *, namespace: str, labels: dict[str, str], owner: list[dict[str, Any]]) -> Object:
        """The configuration, immutable under a name of its own: a pod that restarts finds what it was made with."""
        metadata = {"name": self.config_name, "namespace": namespace, "labels": labels, "ownerReferences": owner}
        return {"metadata": metadata, "immutable": True, "data": {CONFIG_FILE: self.config_text}}


def render(place: Place, spec: WeightBudgetSpec, *, default_image: str, operator_image: str) -> Template:
    """The template of a budget.

    Args:
        place: of its host pools; it names the budget.
        spec: of the budget.
        default_image: what workers run where the spec names no image.
        operator_image: what prepares the node for them.

    Raises:
        ConfigError: the spec makes no valid worker configuration; the message names key, value and limit.
    """
    budget = place.budget
    text = render_config(worker_config(spec))
    config_name = f"{budget}-config-{_hash(text)}"
    labels = {**spec.workers.pod_metadata.labels, **naming.labels(component="worker", budget=budget)}
    metadata = {"labels": labels, "annotations": dict(spec.workers.pod_metadata.annotations)}

    def of_pod(workers: int) -> Object:
        return pod_spec(
            place,
            spec,
            config_name,
            default_image=default_image,
            operator_image=operator_image,
            workers_beside=workers,
        )

    return Template(
        config_name=config_name,
        config_text=text,
        metadata=metadata,
        pod_spec=of_pod(spec.workers.replicas),
        spec_hash=_hash(wished(spec)),
        template_hash=_hash([metadata, of_pod(1), text]),  # a pool that grows or shrinks makes no pod out of date
    )


def wished(spec: WeightBudgetSpec) -> dict[str, Any]:
    """The part of a spec that worker pods are made from, defaults left out: a new field with a default changes nothing."""
    parts = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    workers = {key: value for key, value in parts.get("workers", {}).items() if key != "replicas"}
    return {"workers": workers, **{key: parts[key] for key in ("modelStores", "device", "host") if key in parts}}


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]
