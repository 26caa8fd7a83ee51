# SPDX-License-Identifier: Apache-2.0
"""The worker pod of a WeightBudget: its configuration, its template, and the hashes that tell when it changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import pydantic
import yaml

from ballast_contract import config, names, quantities, validation
from ballast_operator.api.weightbudget import Backend, WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile import naming

CONFIG_DIRECTORY: Final = "/etc/ballast"
CONFIG_FILE: Final = "worker.yaml"
STORES_DIRECTORY: Final = "/models"
EXECUTABLES_DIRECTORY: Final = "/var/lib/ballast/executables"
STATE_DIRECTORY: Final = "/var/lib/ballast/state"
HOST_DIRECTORY: Final = "/dev/shm/ballast"  # noqa: S108 - the host pool lives in shared memory by design
TEMPORARY_DIRECTORY: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own

GPU_RESOURCE: Final = "nvidia.com/gpu"

_HOST_POOL_OVERHEAD: Final = 64 << 20
"""What the host pool's table takes beside the copies."""

_NODE_LOST_SECONDS: Final = 30
"""How long a worker stays bound to a node that does not answer, before it is replaced elsewhere."""


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


def render(budget: str, spec: WeightBudgetSpec, *, default_image: str) -> Template:
    """The template of a budget.

    Raises:
        ConfigError: the spec makes no valid worker configuration; the message names key, value and limit.
    """
    text = render_config(worker_config(spec))
    config_name = f"{budget}-config-{_hash(text)}"
    labels = {**spec.workers.pod_metadata.labels, **naming.labels(component="worker", budget=budget)}
    metadata = {"labels": labels, "annotations": dict(spec.workers.pod_metadata.annotations)}
    pod_spec = _pod_spec(budget, spec, config_name, default_image)
    return Template(
        config_name=config_name,
        config_text=text,
        metadata=metadata,
        pod_spec=pod_spec,
        spec_hash=_hash(wished(spec)),
        template_hash=_hash([metadata, pod_spec, text]),
    )


def wished(spec: WeightBudgetSpec) -> dict[str, Any]:
    """The part of a spec that worker pods are made from, defaults left out: a new field with a default changes nothing."""
    parts = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    workers = {key: value for key, value in parts.get("workers", {}).items() if key != "replicas"}
    return {"workers": workers, **{key: parts[key] for key in ("modelStores", "device", "host") if key in parts}}


def worker_config(spec: WeightBudgetSpec) -> config.WorkerConfig:
    """The configuration of every worker of a budget, checked by the worker's own model.

    Raises:
        ConfigError: it is not valid.
    """
    device, host = spec.device, spec.host
    data: dict[str, Any] = {
        "backend": spec.workers.backend.value,
        "managed": True,
        "stores": {claim: f"{STORES_DIRECTORY}/{claim}" for claim in claims(spec)},
        "executableStore": EXECUTABLES_DIRECTORY,
        "stateDirectory": STATE_DIRECTORY,
        "device": {
            "budget": _size(device.budget),
            "reserve": _size(device.reserve),
            "weights": {
                "maxPercent": device.weights.max_percent,
                "slackPercent": device.weights.slack_percent,
            },
            "scratch": _size(device.scratch),
            "oversubscription": device.oversubscription.value,
            "allocator": device.allocator,
        },
        "host": {
            "budget": _size(host.budget),
            "sharing": host.sharing.value,
            "fileMode": host.file_mode,
            "directory": HOST_DIRECTORY,
        },
        "serving": {"graceSeconds": spec.workers.termination_grace_period_seconds},
    }
    try:
        return config.WorkerConfig.model_validate(data)
    except pydantic.ValidationError as error:
        raise config.ConfigError(validation.describe(error, config.WorkerConfig)) from error


def render_config(worker: config.WorkerConfig) -> str:
    """The configuration file: only what differs from the worker's defaults, in a stable order."""
    return str(yaml.safe_dump(worker.model_dump(mode="json", by_alias=True, exclude_defaults=True), sort_keys=True))


def claims(spec: WeightBudgetSpec) -> list[str]:
    """The claims of the model stores."""
    return [store.persistent_volume_claim.claim_name for store in spec.model_stores]


def _size(text: str | None) -> int | str | None:
    if text is None or text.endswith("%") or text in ("auto", "unlimited"):
        return text
    return quantities.parse_api(text)


def _pod_spec(budget: str, spec: WeightBudgetSpec, config_name: str, default_image: str) -> Object:
    workers = spec.workers
    volumes, mounts = _volumes(budget, spec, config_name)
    security: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if workers.run_as_user is not None:
        security["runAsUser"] = workers.run_as_user
    if workers.fs_group is not None:
        security |= {"fsGroup": workers.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    found: Object = {
        "containers": [_container(spec, mounts, default_image)],
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


def _container(spec: WeightBudgetSpec, mounts: list[Object], default_image: str) -> Object:
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
        "resources": _resources(spec),
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


def _resources(spec: WeightBudgetSpec) -> Object:
    resources = spec.workers.resources
    requests, limits = dict(resources.requests), dict(resources.limits)
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


def _volumes(budget: str, spec: WeightBudgetSpec, config_name: str) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = []
    mounts: list[Object] = []

    def mount(name: str, path: str, source: Object, **options: Any) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **options})

    mount("config", CONFIG_DIRECTORY, {"configMap": {"name": config_name}}, readOnly=True)
    mount("tmp", TEMPORARY_DIRECTORY, {"emptyDir": {}})
    mount("state", STATE_DIRECTORY, {"emptyDir": {}})
    store = spec.workers.executable_store
    if store.persistent_volume_claim is not None:
        claim = {"persistentVolumeClaim": {"claimName": store.persistent_volume_claim.claim_name}}
        mount("executables", EXECUTABLES_DIRECTORY, claim, subPath=budget)
    else:
        limit = store.empty_dir.size_limit if store.empty_dir else None
        mount("executables", EXECUTABLES_DIRECTORY, {"emptyDir": {"sizeLimit": limit} if limit else {}})
    memory: Object = {"medium": "Memory"}
    size = _size(spec.host.budget)
    if isinstance(size, int) and size > 0:
        memory["sizeLimit"] = quantities.ceil_api(size + _HOST_POOL_OVERHEAD)
    if size != 0:
        mount("host-pool", HOST_DIRECTORY, {"emptyDir": memory})
    for index, claim_name in enumerate(claims(spec)):
        source = {"persistentVolumeClaim": {"claimName": claim_name, "readOnly": True}}
        mount(f"store-{index}", f"{STORES_DIRECTORY}/{claim_name}", source, readOnly=True)
    return volumes, mounts


def _dump(part: Any) -> Object:
    return {k: v for k, v in part.model_dump(mode="json", by_alias=True, exclude_none=True).items() if v != {}}


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]
