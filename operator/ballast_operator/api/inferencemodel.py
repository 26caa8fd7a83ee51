# SPDX-License-Identifier: Apache-2.0
"""InferenceModel: one model that a pool of workers serves, and where its weights are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

import pydantic

from ballast_contract.config import ResidencyWish
from ballast_operator.api.common import (
    DNS_SUBDOMAIN,
    Conditions,
    Count,
    Generation,
    Message,
    ObjectMeta,
    ObjectName,
    ReportedSize,
    Rule,
    Spec,
    Spelling,
    Status,
    Tier,
    Timestamp,
    Word,
    rules,
)

_PART: Final = r"[^/?#\\\x00-\x1f\x7f]"
_FIRST: Final = r"[^./?#\\\x00-\x1f\x7f]"

URI_PATTERN: Final = rf"^(pvc://{DNS_SUBDOMAIN}|file://)(/({_FIRST}|\.{_FIRST}|\.\.{_PART}){_PART}*)+$"
"""A place in a model store, or in the worker's own file system; no part of the path is empty, '.' or '..'."""

_SEGMENT: Final = "[A-Za-z0-9_]([-A-Za-z0-9._]*[A-Za-z0-9_])?"
MODEL_NAME_PATTERN: Final = f"^{_SEGMENT}(/{_SEGMENT})*$"

MAX_REPORTED_WORKERS: Final = 32
"""Workers listed in a status; `workersTotal` counts them all."""


class Coverage(StrEnum):
    """How many copies are wanted."""

    REPLICAS = "replicas"
    ALL_WORKERS = "allWorkers"


class BudgetRef(Spec):
    """The WeightBudget of a model, in its own namespace."""

    name: ObjectName
    """name is the name of a WeightBudget in the same namespace."""


class Source(Spec):
    """Where a bundle is."""

    uri: Annotated[
        str,
        pydantic.Field(min_length=1, max_length=2048),
        Spelling(URI_PATTERN, "a place of a bundle: write pvc://<claim>/<path>, as in pvc://models/minilm"),
    ]
    """uri is where the bundle is: pvc://<claim>/<path> in a model store of the WeightBudget, or file:///<path> in the
    worker's image. It may change: the new bundle loads beside the old one and then replaces it."""
    digest: (
        Annotated[
            str,
            pydantic.Field(min_length=1, max_length=71),
            Spelling("^sha256:[0-9a-f]{64}$", "a digest: write sha256: and 64 hexadecimal digits in lower case"),
        ]
        | None
    ) = None
    """digest is sha256: and the SHA-256 of the bundle's manifest.yaml, which names the digests of all its files. Other bytes
    are refused. Without it the bytes at the uri are taken as they are."""


class Batching(Spec):
    """How requests of one model are put together."""

    max_size: Annotated[int, pydantic.Field(ge=0, le=65536)] = 0
    """maxSize is the most rows in one execution; 0 is the largest size that the bundle is compiled for."""
    max_delay_milliseconds: Annotated[int, pydantic.Field(ge=0, le=60000)] = 0
    """maxDelayMilliseconds is how long a row may wait for company while the device is busy. There is never a delay while
    the device is idle."""


class InferenceModelSpec(Spec):
    """What the user wants of a model."""

    model_name: (
        Annotated[
            str,
            pydantic.Field(min_length=1, max_length=253),
            Spelling(
                MODEL_NAME_PATTERN, "a model name: write letters, digits, '-', '_', '.' and '/', as in acme/minilm-v2"
            ),
            Rule(
                "!self.split('/').exists(part, part in ['versions', 'infer', 'ready'])",
                "modelName has a part named versions, infer or ready, which the protocol's addresses use: name it otherwise",
            ),
        ]
        | None
    ) = None
    """modelName is what clients call; it is metadata.name where left out. Dots and slashes are allowed."""
    budget_ref: Annotated[
        BudgetRef,
        Rule(
            "self.name == oldSelf.name",
            "budgetRef cannot change; create another InferenceModel",
            '"budgetRef cannot change: it is \'" + oldSelf.name + "\' and not \'" + self.name + '
            '"\'; create another InferenceModel"',
        ),
    ]
    """budgetRef names the WeightBudget whose workers serve the model. It cannot change."""
    source: Source
    """source says where the bundle is."""
    residency: ResidencyWish = ResidencyWish.UNPINNED
    """residency is what is wanted of the weights: unpinned (swapped in when called), system (a host copy is always kept)
    or device (always on the device)."""
    replicas: Annotated[int, pydantic.Field(ge=0, le=1000)] = 1
    """replicas is the number of workers that serve the model; 0 keeps the object and serves nothing."""
    coverage: Coverage = Coverage.REPLICAS
    """coverage is replicas (as many copies as replicas says) or allWorkers (a copy on every worker of the pool)."""
    batching: Batching = Batching()
    """batching says how requests of this model are put together."""

    model_config = pydantic.ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.coverage != 'allWorkers' || self.replicas <= 1",
                "replicas is above 1, but coverage allWorkers puts a copy on every worker: leave replicas out, or set 0 to "
                "serve nothing",
            )
        )
    )


class ModelSize(Status):
    """What a model takes on a device."""

    weights: ReportedSize | None = None
    """weights is the packed size of the weights."""
    largest_tensor: ReportedSize | None = None
    """largestTensor is the size of the largest tensor."""
    scratch: ReportedSize | None = None
    """scratch is the device memory that the largest program needs while it runs."""
    code: ReportedSize | None = None
    """code is the device memory that the executables take."""
    measured: bool | None = None
    """measured is true when scratch and code were measured on a worker, and false while they are not known."""


class ModelCopy(Status):
    """A model on one worker."""

    name: Word
    """name is the name of the worker's pod."""
    node: Word | None = None
    """node is the node of the pod."""
    tier: Tier | None = None
    """tier is where the weights are on this worker: device, host or none. It is absent while not known."""
    bytes: ReportedSize | None = None
    """bytes is the packed size of the weights that this worker holds."""
    digest: Annotated[str, pydantic.Field(max_length=71)] | None = None
    """digest is the digest of the bundle that serves now."""


class Assignment(Status):
    """Which workers are to serve the model; written before it is sent to them."""

    workers: Annotated[
        tuple[Word, ...], pydantic.Field(max_length=1024, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """workers are the names of the workers' pods."""
    generation: Generation = 0
    """generation grows with every new assignment of the pool."""


class Address(Status):
    """Where clients call the model."""

    http: Annotated[str, pydantic.Field(max_length=512)] | None = None
    """http is the base URL of the Open Inference Protocol over HTTP."""
    grpc: Annotated[str, pydantic.Field(max_length=512)] | None = None
    """grpc is host and port of the Open Inference Protocol over gRPC."""


class Failure(Status):
    """The last thing that went wrong."""

    reason: Word
    """reason is one word of the closed list in docs/reference/reasons.md."""
    message: Message = ""
    """message says what happened and what to do."""
    worker: Word | None = None
    """worker is the name of the worker's pod, where there was one."""
    time: Timestamp | None = None
    """time is when it happened."""
    exit_code: Annotated[int, pydantic.Field(ge=-255, le=255)] | None = None
    """exitCode is the exit status of the process that ended, negative for a signal."""


class InferenceModelStatus(Status):
    """What was observed of a model."""

    observed_generation: Generation | None = None
    """observedGeneration is the generation of the spec that this status speaks of."""
    residency: Tier | None = None
    """residency is the worst tier of the wanted copies: device, host or none."""
    replicas: Count | None = None
    """replicas is the number of workers that the model is placed on."""
    ready_replicas: Count | None = None
    """readyReplicas is the number of workers that would answer a call."""
    worker_names: Annotated[str, pydantic.Field(max_length=8192)] | None = None
    """workerNames are the names in workers as one text, for the column."""
    size: ModelSize | None = None
    """size is what the model takes on a device."""
    load_milliseconds: Count | None = None
    """loadMilliseconds is how long the last load took, from the decision until the model could be called."""
    workers: Annotated[
        tuple[ModelCopy, ...],
        pydantic.Field(
            max_length=MAX_REPORTED_WORKERS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """workers are the workers that hold or serve the model, at most 32 of them."""
    workers_total: Count | None = None
    """workersTotal is the number of workers that hold or serve the model."""
    assignment: Assignment | None = None
    """assignment is which workers are to serve the model."""
    address: Address | None = None
    """address is where clients call the model."""
    last_failure: Failure | None = None
    """lastFailure is the last thing that went wrong; it stays when the model has recovered."""
    conditions: Conditions = ()
    """conditions are Accepted, Placed, Loaded (the wanted tier is reached; for unpinned: prepared), Ready (a call would be
    answered) and Degraded."""


class InferenceModel(pydantic.BaseModel):
    """InferenceModel is a model that the workers of a WeightBudget serve."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, validate_by_name=True, validate_by_alias=True)

    api_version: Literal["ballast.dev/v1alpha1"] = pydantic.Field(default="ballast.dev/v1alpha1", alias="apiVersion")
    kind: Literal["InferenceModel"] = "InferenceModel"
    metadata: ObjectMeta
    spec: InferenceModelSpec
    status: InferenceModelStatus = InferenceModelStatus()

    @property
    def served_name(self) -> str:
        """What clients call."""
        return self.spec.model_name or self.metadata.name
