# SPDX-License-Identifier: Apache-2.0
"""The pod that a worker runs in."""

from __future__ import annotations

from typing import Any, Final

from ballast_contract import names
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.api.workers import Backend
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile import host_memory, naming
from ballast_operator.reconcile.host_memory import Place
from ballast_operator.reconcile.worker_config import (
    CONFIG_DIRECTORY,
    CONFIG_FILE,
    EXECUTABLES_DIRECTORY,
    STATE_DIRECTORY,
    STORES_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TLS_DIRECTORY,
    claims,
)

GPU_RESOURCE: Final = "nvidia.com/gpu"

_NODE_LOST_SECONDS: Final = 30
"""How long a worker stays bound to a node that does not answer, before it is replaced elsewhere."""


def pod_spec(
    place: Place,
    spec: WeightBudgetSpec,
    config_name: str,
    *,
    default_image: str,
    operator_image: str,
    workers_beside: int,
) -> Object:
    """The spec of a worker pod: what the user set, the restricted Pod Security level, and what a worker needs.

    Only a host pool that workers of a node share asks for more than that level allows. `workers_beside` counts the
    workers that may share a node, this one included.
    """
    workers, budget = spec.workers, place.budget
    volumes, mounts = _volumes(place, spec, config_name)
    security: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if workers.run_as_user is not None:
        security["runAsUser"] = workers.run_as_user
    if workers.fs_group is not None:
        security |= {"fsGroup": workers.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if groups := host_memory.groups(spec, place):
        security["supplementalGroups"] = groups
    found: Object = {
        "initContainers": host_memory.init_containers(spec, place, operator_image),
        "containers": [_container(spec, mounts, default_image, workers_beside)],
        "volumes": volumes,
        "securityContext": security,
        "terminationGracePeriodSeconds": workers.termination_grace_period_seconds,
        "tolerations": _tolerations(spec),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "imagePullSecrets": [secret.model_dump(by_alias=True) for secret in workers.image_pull_secrets],
        "nodeSelector": dict(workers.node_selector),
        "affinity": workers.affinity,
        "topologySpreadConstraints": [
            {**_dump(constraint), "labelSelector": {"matchLabels": naming.worker_selector(budget)}}
            for constraint in workers.topology_spread_constraints
        ],
        "priorityClassName": workers.priority_class_name,
        "runtimeClassName": workers.runtime_class_name,
        "schedulerName": workers.scheduler_name,
    }
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _container(spec: WeightBudgetSpec, mounts: list[Object], default_image: str, workers_beside: int) -> Object:
    ports = {
        "http": names.HTTP_PORT,
        "grpc": names.GRPC_PORT,
        "metrics": names.METRICS_PORT,
        "control": names.CONTROL_PORT,
    }
    health = {"path": "/healthz", "port": "metrics"}
    return {
        "name": "worker",
        "image": spec.workers.image or default_image,
        "args": ["--config", f"{CONFIG_DIRECTORY}/{CONFIG_FILE}"],
        "env": _environment(spec),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "resources": _resources(spec, workers_beside),
        "startupProbe": {"httpGet": health, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 90},
        "livenessProbe": {"httpGet": health, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "metrics"},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(spec: WeightBudgetSpec) -> list[Object]:
    def field(name: str, path: str) -> Object:
        return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}

    ours = [
        field(f"{names.ENV_PREFIX}NAME", "metadata.name"),
        field(f"{names.ENV_PREFIX}NAMESPACE", "metadata.namespace"),
        field(f"{names.ENV_PREFIX}NODE", "spec.nodeName"),
        {"name": "HOME", "value": TEMPORARY_DIRECTORY},
        {"name": "TMPDIR", "value": TEMPORARY_DIRECTORY},
    ]
    theirs = [_dump(variable) for variable in spec.workers.env]
    taken = {variable["name"] for variable in theirs}
    return [variable for variable in ours if variable["name"] not in taken] + theirs


def _resources(spec: WeightBudgetSpec, workers_beside: int) -> Object:
    resources = spec.workers.resources
    requests, limits = dict(resources.requests), dict(resources.limits)
    request, limit = host_memory.memory(spec, workers=workers_beside)
    requests |= {"memory": request} if request is not None else {}
    limits |= {"memory": limit} if limit is not None else {}
    extended = any("/" in name for name in (*requests, *limits))
    if spec.workers.backend is Backend.CUDA and not extended:
        limits[GPU_RESOURCE] = "1"
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _tolerations(spec: WeightBudgetSpec) -> list[Object]:
    theirs = [_dump(toleration) for toleration in spec.workers.tolerations]
    said = {toleration.get("key") for toleration in theirs}
    ours: list[Object] = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_LOST_SECONDS,
        }
        for taint in ("not-ready", "unreachable")
    ]
    return theirs + [toleration for toleration in ours if toleration["key"] not in said]


def _volumes(place: Place, spec: WeightBudgetSpec, config_name: str) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = []
    mounts: list[Object] = []

    def mount(name: str, path: str, source: Object, **options: Any) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **options})

    mount(naming.CONFIG, CONFIG_DIRECTORY, {"configMap": {"name": config_name}}, readOnly=True)
    mount("tls", TLS_DIRECTORY, {"secret": {"secretName": names.WORKER_CERTIFICATE}}, readOnly=True)
    mount("tmp", TEMPORARY_DIRECTORY, {"emptyDir": {}})
    mount("state", STATE_DIRECTORY, {"emptyDir": {}})
    store = spec.workers.executable_store
    if store.persistent_volume_claim is not None:
        claim = {"persistentVolumeClaim": {"claimName": store.persistent_volume_claim.claim_name}}
        mount("executables", EXECUTABLES_DIRECTORY, claim, subPath=place.budget)
    else:
        limit = store.empty_dir.size_limit if store.empty_dir else None
        mount("executables", EXECUTABLES_DIRECTORY, {"emptyDir": {"sizeLimit": limit} if limit else {}})
    copies = host_memory.volumes(spec, place)
    volumes += copies[0]
    mounts += copies[1]
    for index, claim_name in enumerate(claims(spec)):
        source = {"persistentVolumeClaim": {"claimName": claim_name, "readOnly": True}}
        mount(f"store-{index}", f"{STORES_DIRECTORY}/{claim_name}", source, readOnly=True)
    return volumes, mounts


def _dump(part: Any) -> Object:
    return {k: v for k, v in part.model_dump(mode="json", by_alias=True, exclude_none=True).items() if v != {}}
