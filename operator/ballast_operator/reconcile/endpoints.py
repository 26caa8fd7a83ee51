# SPDX-License-Identifier: Apache-2.0
"""The Service of a model and its EndpointSlices: exactly the workers where it can be called. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from ballast_contract import names
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import MODELS
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.wishes import Model
from ballast_operator.reconcile.workers import Worker

MAX_PER_SLICE: Final = 100

PORTS: Final = (("http", names.HTTP_PORT), ("grpc", names.GRPC_PORT))


class Ownership(Enum):
    """Whose Service stands under the model's name."""

    NONE = auto()
    OURS = auto()
    FORMER = auto()
    """Made for an object that is gone; Kubernetes will collect it."""
    FOREIGN = auto()


def ownership(service: Object | None, *, uid: str) -> Ownership:
    """Judge what stands under a name that we want; something of somebody else is never adopted."""
    if service is None:
        return Ownership.NONE
    if not naming.is_ours(service):
        return Ownership.FOREIGN
    if naming.owner_uid(service) == uid:
        return Ownership.OURS
    return Ownership.FORMER if naming.owner_kind(service) == MODELS.kind else Ownership.FOREIGN


def service(model: Model, owner: list[dict[str, Any]]) -> Object:
    """The Service of a model: no selector, its endpoints are ours to write."""
    return {
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": naming.labels(component="model", budget=model.spec.budget_ref.name, model=model.name),
            "ownerReferences": owner,
        },
        "spec": {"type": "ClusterIP", "ports": service_ports()},
    }


def service_ports() -> list[Object]:
    """The ports of every Service in front of workers."""
    return [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": _APP_PROTOCOLS[name]}
        for name, port in PORTS
    ]


_APP_PROTOCOLS: Final = {"http": "http", "grpc": "kubernetes.io/h2c"}


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What to do about the slices of one model."""

    write: tuple[Object, ...]
    delete: tuple[Object, ...]


def plan_slices(
    model: Model,
    *,
    workers: Sequence[Worker],
    serve: Collection[str],
    existing: Sequence[Object],
    owner: list[dict[str, Any]],
) -> SlicePlan:
    """The slices as they should be, less those that are so already.

    An endpoint comes and goes on the worker's word, or when its pod is not Ready, gone, or another. A worker of which
    nothing is known keeps the endpoint that it has and gets no new one.
    """
    now = present(existing)
    wanted = [e for w in workers if w.uid in serve and (e := _endpoint(model, w, now.get(w.uid))) is not None]
    bodies = {body["metadata"]["name"]: body for body in _slices(model, wanted, owner)}
    held = {obj["metadata"]["name"]: obj for obj in existing}
    return SlicePlan(
        write=tuple(body for name, body in bodies.items() if not naming.contains(held.get(name), body)),
        delete=tuple(obj for name, obj in held.items() if name not in bodies),
    )


def present(slices: Iterable[Object]) -> dict[str, Object]:
    """The endpoints of slices, by the uid of their pod."""
    return {e["targetRef"]["uid"]: e for s in slices for e in s.get("endpoints") or () if "targetRef" in e}


def exposed(slices: Iterable[Object]) -> frozenset[str]:
    """Uids of pods that slices call ready."""
    return frozenset(uid for uid, found in present(slices).items() if found.get("conditions", {}).get("ready"))


def _endpoint(model: Model, worker: Worker, now: Mapping[str, Any] | None) -> Object | None:
    pod = worker.pod
    known = worker.can_call(model)
    if not pod.ip or known is False or (known is None and now is None):
        return None
    if not pod.terminating and not pod.ready:
        return None
    conditions = {"ready": not pod.terminating, "serving": True, "terminating": pod.terminating}
    found: Object = {
        "addresses": [pod.ip],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "namespace": model.namespace, "name": pod.name, "uid": pod.uid},
    }
    if pod.node:
        found["nodeName"] = pod.node
    return found


def _slices(model: Model, endpoints: Sequence[Object], owner: list[dict[str, Any]]) -> list[Object]:
    families: dict[str, list[Object]] = {}
    for endpoint in endpoints:
        family = "IPv6" if ipaddress.ip_address(endpoint["addresses"][0]).version == 6 else "IPv4"
        families.setdefault(family, []).append(endpoint)
    found = []
    for family in sorted(families):
        members = sorted(families[family], key=lambda e: str(e["targetRef"]["name"]))
        for start in range(0, len(members), MAX_PER_SLICE):
            number = start // MAX_PER_SLICE
            suffix = f"-{number}" if number else ""
            found.append(
                _slice(
                    model,
                    family,
                    f"{model.name}-{family.lower()}{suffix}",
                    members[start : start + MAX_PER_SLICE],
                    owner,
                )
            )
    return found


def _slice(model: Model, family: str, name: str, endpoints: list[Object], owner: list[dict[str, Any]]) -> Object:
    labels = {
        **naming.labels(component="model", budget=model.spec.budget_ref.name, model=model.name),
        naming.SERVICE_LABEL: model.name,
        naming.SLICE_MANAGER_LABEL: naming.SLICE_MANAGER,
    }
    return {
        "metadata": {"name": name, "namespace": model.namespace, "labels": labels, "ownerReferences": owner},
        "addressType": family,
        "ports": [
            {"name": name, "port": port, "protocol": "TCP", "appProtocol": _APP_PROTOCOLS[name]} for name, port in PORTS
        ],
        "endpoints": endpoints,
    }
