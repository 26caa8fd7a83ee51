# SPDX-License-Identifier: Apache-2.0
"""WeightBudget: a pool of workers, the device and host memory that weights may take there, and how models are placed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import pydantic

from ballast_operator.api.common import (
    NamespaceName,
    ObjectMeta,
    ObjectName,
    Rule,
    Spec,
    Spelling,
)
from ballast_operator.api.sizes import Size, SizeAutoOrUnlimited, SizeOrAuto, SizeOrPercent
from ballast_operator.api.weightbudget_status import WeightBudgetStatus
from ballast_operator.api.workers import ModelStore, Workers


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
        Spelling(
            "^0[67][0-7]{2}$",
            "a file mode: write four octal digits in quotes with which the owner reads and writes, as in '0660'",
        ),
    ] = "0660"
    """fileMode is the mode of the files that hold shared copies, in octal digits and in quotes. The worker, their owner,
    reads and writes them."""


class GatewayRef(Spec):
    """A Gateway of the Gateway API."""

    name: ObjectName
    """name is its name."""
    namespace: NamespaceName | None = None
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


class WeightBudget(pydantic.BaseModel):
    """WeightBudget is a pool of workers with the memory that the weights of its models may take."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, validate_by_name=True, validate_by_alias=True)

    api_version: Literal["ballast.dev/v1alpha1"] = pydantic.Field(default="ballast.dev/v1alpha1", alias="apiVersion")
    kind: Literal["WeightBudget"] = "WeightBudget"
    metadata: ObjectMeta
    spec: WeightBudgetSpec = WeightBudgetSpec()
    status: WeightBudgetStatus = WeightBudgetStatus()
