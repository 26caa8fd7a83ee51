# SPDX-License-Identifier: Apache-2.0
"""The worker pods of a WeightBudget, and the volumes they share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import pydantic

from ballast_contract.config import LogLevel
from ballast_operator.api.common import LabelKey, ObjectName, Rule, Spec, rules
from ballast_operator.api.pods import (
    EnvVar,
    ImagePullSecret,
    PodMetadata,
    Resources,
    Toleration,
    TopologySpreadConstraint,
)
from ballast_operator.api.sizes import Size

MAX_WORKERS: Final = 1000


class Backend(StrEnum):
    """What a worker computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class ClaimRef(Spec):
    """A PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName
    """claimName is the name of a PersistentVolumeClaim in the same namespace."""


class EmptyDir(Spec):
    """A directory that lives and dies with its pod."""

    size_limit: Size | None = None
    """sizeLimit is the most that the directory may hold."""


class ExecutableStore(Spec):
    """Where compiled programs are kept."""

    empty_dir: EmptyDir | None = None
    """emptyDir keeps compiled programs with the pod: each new pod compiles again. This is the default."""
    persistent_volume_claim: ClaimRef | None = None
    """persistentVolumeClaim keeps compiled programs in a claim that all workers can write, one folder per budget: a new
    pod starts without compiling."""

    model_config = pydantic.ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!(has(self.emptyDir) && has(self.persistentVolumeClaim))",
                "executableStore has emptyDir and persistentVolumeClaim: keep one of them",
            )
        )
    )


class ModelStore(Spec):
    """A place that holds bundles, mounted read-only by every worker."""

    persistent_volume_claim: ClaimRef
    """persistentVolumeClaim is the claim that holds bundles; pvc://<claim>/<path> names one of them."""


class Workers(Spec):
    """The worker pods of a pool."""

    replicas: Annotated[int, pydantic.Field(ge=0, le=MAX_WORKERS)] = 1
    """replicas is the number of worker pods."""
    backend: Backend = Backend.CUDA
    """backend is what a worker computes on: cuda (asks for nvidia.com/gpu: 1 unless resources name another extended
    resource) or cpu (for development)."""
    image: Annotated[str, pydantic.Field(min_length=1, max_length=512)] | None = None
    """image is the worker image; it is the one that the operator was installed with where left out."""
    image_pull_secrets: Annotated[
        tuple[ImagePullSecret, ...],
        pydantic.Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """imagePullSecrets are the Secrets of the same namespace with which the image is pulled."""
    resources: Resources = Resources()
    """resources are the requests and limits of the worker container. Memory is that of the process: a host.budget of a
    fixed size is added to the limit, and its part, divided by replicas, to the request."""
    env: Annotated[
        tuple[EnvVar, ...],
        pydantic.Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """env are additional environment variables of the worker container. The worker's own, which begin with BALLAST_, are
    set by the fields of this object."""
    node_selector: Annotated[
        dict[LabelKey, Annotated[str, pydantic.Field(max_length=63)]], pydantic.Field(max_length=32)
    ] = pydantic.Field(default_factory=dict)
    """nodeSelector are the labels that a node must have."""
    tolerations: Annotated[
        tuple[Toleration, ...],
        pydantic.Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """tolerations are the taints of nodes that do not keep the workers away."""
    affinity: Annotated[
        dict[str, Any], pydantic.Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    ] = pydantic.Field(default_factory=dict)
    """affinity is the affinity of a Pod (core/v1), passed on as it is."""
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...],
        pydantic.Field(
            max_length=8,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["topologyKey", "whenUnsatisfiable"],
            },
        ),
    ] = ()
    """topologySpreadConstraints say how the workers of this pool spread over zones and nodes; they count the workers of
    this pool."""
    priority_class_name: ObjectName | None = None
    """priorityClassName is the PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """runtimeClassName is the RuntimeClass of the pods."""
    scheduler_name: ObjectName | None = None
    """schedulerName is the scheduler of the pods."""
    pod_metadata: PodMetadata = PodMetadata()
    """podMetadata are additional labels and annotations of the pods."""
    run_as_user: Annotated[int, pydantic.Field(ge=1, le=(1 << 31) - 1)] | None = None
    """runAsUser is the user id of the worker; never root. Where left out, it is the image's."""
    fs_group: Annotated[int, pydantic.Field(ge=1, le=(1 << 31) - 1)] | None = None
    """fsGroup is the group id that owns the pods' volumes; never root's."""
    termination_grace_period_seconds: Annotated[int, pydantic.Field(ge=30, le=86400)] = 300
    """terminationGracePeriodSeconds is how long a pod that ends may take to hand its models over."""
    log_level: LogLevel = LogLevel.INFO
    """logLevel is the least that workers log: debug, info, warning or error; debug has each load and eviction."""
    executable_store: ExecutableStore = ExecutableStore()
    """executableStore is where compiled programs are kept."""
