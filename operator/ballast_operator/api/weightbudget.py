# SPDX-License-Identifier: Apache-2.0
"""WeightBudget: a pool of workers, the device and host memory that weights may take there, and how models are placed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import pydantic

from ballast_operator.api.common import (
    Conditions,
    Count,
    Generation,
    LabelKey,
    Message,
    ObjectMeta,
    ObjectName,
    Percent,
    ReportedSize,
    Rule,
    Size,
    SizeAutoOrUnlimited,
    SizeOrAuto,
    SizeOrPercent,
    Spec,
    Spelling,
    Status,
    Timestamp,
    Word,
    rules,
)
from ballast_operator.api.pods import (
    EnvVar,
    ImagePullSecret,
    PodMetadata,
    Resources,
    Toleration,
    TopologySpreadConstraint,
)

MAX_WORKERS: Final = 1000


class Backend(StrEnum):
    """What a worker computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class Oversubscription(StrEnum):
    """What happens where a plan does not fit."""

    REFUSE = "refuse"
    ALLOW = "allow"


class HostSharing(StrEnum):
    """Who shares the host copies."""

    NODE = "node"
    NONE = "none"


class Addresses(StrEnum):
    """Which Services a pool gets."""

    PER_MODEL = "perModel"
    POOL = "pool"


class PlacementMode(StrEnum):
    """How models are given to workers."""

    PACKED = "packed"
    ALL = "all"


class CompactionMode(StrEnum):
    """What is done about fragmentation after a repack."""

    DISABLED = "disabled"
    LAZY = "lazy"
    PRELOAD = "preload"
    MOVE = "move"


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
    executable_store: ExecutableStore = ExecutableStore()
    """executableStore is where compiled programs are kept."""


class Weights(Spec):
    """Shares of the usable device memory, which is the budget less driver context and code."""

    max_percent: Annotated[int, pydantic.Field(ge=1, le=100)] = 100
    """maxPercent is the most of the usable memory that weights may take."""
    slack_percent: Annotated[int, pydantic.Field(ge=0, le=99)] = 10
    """slackPercent is the part of the usable memory that is kept free on purpose."""


class Device(Spec):
    """The device memory of each worker."""

    budget: SizeOrPercent | None = None
    """budget is the device memory of the whole worker process: a size, or a percentage of the card. Where left out, it is
    what is free when the worker starts, less reserve."""
    reserve: Size = "1536Mi"
    """reserve is what a budget that is left out leaves to everything else on the card."""
    weights: Weights = Weights()
    """weights are the shares of the usable memory that weights may take and that is kept free."""
    scratch: SizeOrAuto = "auto"
    """scratch bounds the memory in which programs run: auto (the least with which every program runs) or a size. One
    greedy model cannot raise it for everyone."""
    oversubscription: Oversubscription = Oversubscription.REFUSE
    """oversubscription says what happens where the plan does not fit: refuse (the worker says what is missing and serves
    nothing) or allow (it starts with a warning)."""
    allocator: Literal["arena", "bfc"] = "arena"
    """allocator is how device memory for weights is managed: arena (one block, owned by the worker, in which weights slide) or
    bfc (XLA's own allocator, beside scratch; room in one block is made by freeing weights and loading them again)."""


class Host(Spec):
    """The host memory that keeps copies of weights."""

    budget: SizeAutoOrUnlimited = "auto"
    """budget is what host copies of this pool may take on a node: auto (what the memory limit and /dev/shm allow), 0, a
    size, or unlimited. With sharing none the workers of a node divide it."""
    sharing: HostSharing = HostSharing.NODE
    """sharing says who shares host copies: node (the workers of this pool on a node share one copy of each model in
    /dev/shm of the node, which takes a hostPath volume and an init container as root) or none (each worker has its own;
    pods then fit the Pod Security level restricted)."""
    file_mode: Annotated[
        str,
        pydantic.Field(min_length=1, max_length=4),
        Spelling("^0[0-7]{3}$", "a file mode: write four octal digits in quotes, as in '0660'"),
    ] = "0660"
    """fileMode is the mode of the files that hold shared copies, in octal digits and in quotes."""


class GatewayRef(Spec):
    """A Gateway of the Gateway API."""

    name: ObjectName
    """name is its name."""
    namespace: ObjectName | None = None
    """namespace is its namespace; that of the WeightBudget where left out."""
    section_name: ObjectName | None = None
    """sectionName is the listener of it; every one that fits where left out."""


class Serving(Spec):
    """How clients reach the models."""

    addresses: Addresses = Addresses.PER_MODEL
    """addresses are perModel (a Service for each model, beside the pool's) or pool (the pool's Service alone)."""
    gateway_ref: GatewayRef | None = None
    """gatewayRef is a Gateway through which clients reach the pool over HTTP: an HTTPRoute <name>-pool is made for it."""


class Repack(Spec):
    """When models are assigned to workers anew."""

    first_after_compute_seconds: Annotated[int, pydantic.Field(ge=0, le=1 << 30)] = 60
    """firstAfterComputeSeconds is after how many seconds of device time, over all workers, the first repack comes; 0
    leaves it to everyComputeSeconds."""
    every_compute_seconds: Annotated[int, pydantic.Field(ge=1, le=1 << 30)] = 300
    """everyComputeSeconds is after how many seconds of device time, over all workers, each further repack comes."""


class Compaction(Spec):
    """What is done about fragmentation after a repack."""

    mode: CompactionMode = CompactionMode.DISABLED
    """mode is disabled (admission repairs what it needs), lazy (free what is not pinned, reload on demand), preload (free,
    then reload the assigned models, largest first) or move (slide the weights together; nothing is dropped)."""
    every_repacks: Annotated[int, pydantic.Field(ge=1, le=1000)] = 1
    """everyRepacks is after how many repacks the workers whose models changed are compacted."""


class Placement(Spec):
    """How models are given to workers."""

    mode: PlacementMode = PlacementMode.PACKED
    """mode is packed (each model on as many workers as it wants, by load and memory) or all (every worker serves every
    model)."""
    hysteresis_percent: Annotated[int, pydantic.Field(ge=0, le=99)] = 10
    """hysteresisPercent is by how much a worker must be better before a model moves to it."""
    repack: Repack = Repack()
    """repack says when models are assigned to workers anew."""
    compaction: Compaction = Compaction()
    """compaction says what is done about fragmentation after a repack."""


class WeightBudgetSpec(Spec):
    """What the user wants of a pool."""

    workers: Workers = Workers()
    """workers are the worker pods."""
    model_stores: Annotated[
        tuple[ModelStore, ...],
        pydantic.Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
        Rule(
            "self.all(a, self.exists_one(b, a.persistentVolumeClaim.claimName == b.persistentVolumeClaim.claimName))",
            "modelStores names a claim twice",
        ),
    ] = ()
    """modelStores are the places that hold bundles, mounted read-only by every worker."""
    device: Device = Device()
    """device is the device memory of each worker."""
    host: Host = Host()
    """host is the host memory that keeps copies of weights."""
    serving: Serving = Serving()
    """serving says how clients reach the models."""
    placement: Placement = Placement()
    """placement says how models are given to workers."""


class DeviceStatus(Status):
    """Device memory of the worst worker: the one with the smallest largest free block."""

    budget: ReportedSize | None = None
    """budget is the device memory of the worker process."""
    pinned: ReportedSize | None = None
    """pinned is what models with residency device take."""
    free: ReportedSize | None = None
    """free is what is free for weights."""
    largest_free: ReportedSize | None = None
    """largestFree is the largest free block."""
    fragmentation_percent: Percent | None = None
    """fragmentationPercent is 100 x (1 - largestFree / free); 0 when the free memory is one block."""


class PlanLine(Status):
    """A line of the device memory plan."""

    line: Word
    """line is its name: context, code, scratch, pinned weights, on-demand weights or slack."""
    bytes: ReportedSize
    """bytes is what it takes."""
    source: Annotated[str, pydantic.Field(max_length=253)] = ""
    """source is where the figure comes from: measured, configured, the remainder."""
    knob: Annotated[str, pydantic.Field(max_length=253)] = ""
    """knob is the field that changes it: of this object, or of its models."""


class WorkerStatus(Status):
    """One worker of the pool."""

    name: Word
    """name is the name of the pod."""
    node: Word | None = None
    """node is the node of the pod."""
    ready: bool | None = None
    """ready is true when the worker answers calls. It is absent while not known."""
    reason: Word | None = None
    """reason says in one word why it is not ready."""
    message: Annotated[str, pydantic.Field(max_length=4096)] | None = None
    """message says it in a sentence."""
    models: Count | None = None
    """models is the number of models assigned to it."""
    up_to_date: bool | None = None
    """upToDate is true when the pod runs the current template."""
    free: ReportedSize | None = None
    """free is what is free for weights on its device."""
    largest_free: ReportedSize | None = None
    """largestFree is the largest free block on its device."""


class LastRepack(Status):
    """The last assignment of models to workers."""

    token: Word | None = None
    """token is that of the annotation ballast.dev/repack that asked for it, if one did."""
    time: Timestamp | None = None
    """time is when it was done."""
    trigger: Word | None = None
    """trigger is why it was done: start, compute, workers, models or request."""
    generation: Generation | None = None
    """generation is that of the assignments it made."""
    models_placed: Count | None = None
    """modelsPlaced is the number of models that have a worker."""
    models_moved: Count | None = None
    """modelsMoved is the number of models whose workers changed."""
    workers_changed: Count | None = None
    """workersChanged is the number of workers whose models changed."""


class LastCompaction(Status):
    """The last compaction, over all workers that took part."""

    token: Word | None = None
    """token is that of the annotation ballast.dev/compact that asked for it, if one did."""
    time: Timestamp | None = None
    """time is when it was done."""
    mode: Word | None = None
    """mode is how: lazy, preload or move."""
    workers: Count | None = None
    """workers is the number of workers that were compacted."""
    failed_workers: Count | None = None
    """failedWorkers is the number of workers that could not be compacted."""
    largest_free_before: ReportedSize | None = None
    """largestFreeBefore is the largest free block of the worst worker before."""
    largest_free_after: ReportedSize | None = None
    """largestFreeAfter is the largest free block of the worst worker after."""
    fragmentation_percent_before: Percent | None = None
    """fragmentationPercentBefore is the fragmentation of the worst worker before."""
    fragmentation_percent_after: Percent | None = None
    """fragmentationPercentAfter is the fragmentation of the worst worker after."""
    moved: ReportedSize | None = None
    """moved is how many bytes were moved."""
    reloaded_models: Count | None = None
    """reloadedModels is the number of models that were loaded again."""
    milliseconds_until_moved: Count | None = None
    """millisecondsUntilMoved is how long it took until the free memory was one block."""
    milliseconds_until_callable: Count | None = None
    """millisecondsUntilCallable is how long it took until every model that was to be on the device could be called."""
    message: Message | None = None
    """message says what failed, if anything did."""


class WeightBudgetStatus(Status):
    """What was observed of a pool."""

    observed_generation: Generation | None = None
    """observedGeneration is the generation of the spec that this status speaks of."""
    replicas: Count | None = None
    """replicas is the number of worker pods."""
    ready_replicas: Count | None = None
    """readyReplicas is the number of workers that answer calls."""
    selector: Annotated[str, pydantic.Field(max_length=1024)] | None = None
    """selector selects the worker pods."""
    device: DeviceStatus | None = None
    """device is the device memory of the worst worker."""
    plan: Annotated[
        tuple[PlanLine, ...],
        pydantic.Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["line"]},
        ),
    ] = ()
    """plan are the lines that account for every byte of device memory, of the worst worker."""
    shortfall: ReportedSize | None = None
    """shortfall is what is missing where the plan does not fit."""
    workers: Annotated[
        tuple[WorkerStatus, ...],
        pydantic.Field(
            max_length=MAX_WORKERS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """workers are the workers of the pool."""
    host_nodes: Annotated[
        tuple[Word, ...], pydantic.Field(max_length=MAX_WORKERS, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """hostNodes are the nodes with host copies that workers share, also those where no worker runs any more."""
    last_repack: LastRepack | None = None
    """lastRepack is the last assignment of models to workers."""
    last_compaction: LastCompaction | None = None
    """lastCompaction is the last compaction."""
    conditions: Conditions = ()
    """conditions are Accepted, PlanFits, WorkersReady, Fragmented, UpToDate and Ready."""


class WeightBudget(pydantic.BaseModel):
    """WeightBudget is a pool of workers with the memory that the weights of its models may take."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, validate_by_name=True, validate_by_alias=True)

    api_version: Literal["ballast.dev/v1alpha1"] = pydantic.Field(default="ballast.dev/v1alpha1", alias="apiVersion")
    kind: Literal["WeightBudget"] = "WeightBudget"
    metadata: ObjectMeta
    spec: WeightBudgetSpec = WeightBudgetSpec()
    status: WeightBudgetStatus = WeightBudgetStatus()
