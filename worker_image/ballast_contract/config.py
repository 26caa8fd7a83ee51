# SPDX-License-Identifier: Apache-2.0
"""The worker's configuration: written by the operator into a ConfigMap, or by a person who runs a worker alone.

Every key may also come from the environment: `BALLAST_` and the path in upper snake case, as in
`BALLAST_DEVICE_BUDGET=48g` or `BALLAST_SERVING_HTTP_PORT=8080`. Unknown keys and variables are refused.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic.alias_generators import to_camel

from ballast_contract import names
from ballast_contract.config_values import (
    Address,
    FileMode,
    Place,
    Port,
    SegmentSize,
    Size,
    SizeOrPercent,
    SourceUri,
    WorkerName,
    size_or,
)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names key, value, limit and remedy."""


MAX_MODELS: Final = 10_000
"""Models of one worker: of `models`, of its folder and of an assignment."""


class LogLevel(StrEnum):
    """What the worker's log has, by how much it matters."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ResidencyWish(StrEnum):
    """What the user wants of a model's weights."""

    UNPINNED = "unpinned"
    SYSTEM = "system"
    DEVICE = "device"


class Section(pydantic.BaseModel):
    """A part of the configuration: immutable, unknown keys refused, keys in camelCase."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_enum_values=False
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: pydantic.ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is int:
            raise ValueError("must be a number")
        return value


class Batching(Section):
    """How requests of one model are put together."""

    max_size: Annotated[int, pydantic.Field(ge=0, le=65536)] = 0
    """Rows in one execution; 0 is the largest compiled size."""
    max_delay_milliseconds: Annotated[int, pydantic.Field(ge=0, le=60000)] = 0
    """How long a row may wait for company while the device is busy; never a delay while it is idle."""


class ModelEntry(Section):
    """A model that a worker without an operator serves."""

    name: Annotated[str, pydantic.Field(min_length=1, max_length=253)]
    """What clients call."""
    uri: SourceUri
    """file://PATH, or pvc://CLAIM/PATH below one of the stores."""
    digest: Annotated[str, pydantic.Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Refuse other bytes than these: the SHA-256 of manifest.yaml."""
    residency: ResidencyWish = ResidencyWish.UNPINNED
    """unpinned: swapped on demand; system: a host copy is always kept; device: always on the device."""
    batching: Batching = Batching()


class Weights(Section):
    """Shares of the usable device memory (budget - context - code)."""

    max_percent: Annotated[int, pydantic.Field(ge=1, le=100)] = 100
    """The most that weights, pinned and on demand, may take."""
    slack_percent: Annotated[int, pydantic.Field(ge=0, le=99)] = 10
    """The part kept free on purpose; the builder of a model added later lives in it."""


class Device(Section):
    """Device memory of the whole worker process."""

    budget: SizeOrPercent | None = None
    """Bytes, or a percentage of the card as '90%'. None: what is free at start minus the reserve (1 GiB on cpu)."""
    reserve: Size = 1536 << 20
    """What a budget derived from free memory leaves to everything else on the card."""
    weights: Weights = Weights()
    scratch: Annotated[int | Literal["auto"], size_or("auto")] = "auto"
    """What programs may take beside weights. auto: what the largest of the models needs; a size bounds it for all."""
    oversubscription: Literal["refuse", "allow"] = "refuse"
    """allow: start although the plan does not fit, with a warning."""
    allocator: Literal["arena", "bfc"] = "arena"
    """What places weights on the device. arena: one block of its own, in which weights can slide; bfc: XLA's own allocator,
    beside the scratch of executions, where room in one block is made by freeing and loading again."""
    ordinal: Annotated[int, pydantic.Field(ge=0, le=63)] = 0
    """Which of the devices that the process sees."""


class Host(Section):
    """Host copies of weights."""

    budget: Annotated[int | Literal["auto", "unlimited"], size_or("auto", "unlimited")] = "auto"
    """Bytes that copies may take. auto: what memory limit and shared memory allow; 0: none are kept."""
    sharing: Literal["node", "none"] = "none"
    """node: the workers of a node share one copy of each model; none: each keeps its own."""
    file_mode: FileMode = "0660"
    """Permissions of the files of the host pool, octal; the owner reads and writes."""
    directory: Place = Path("/dev/shm/ballast")  # noqa: S108 - the host pool lives in shared memory by design
    """Where the host pool lies; shared memory."""
    segment_bytes: SegmentSize = 64 << 20
    """Size of one segment file of the host pool; at least 2 MiB, a multiple of 2 MiB."""
    workers: Annotated[int, pydantic.Field(ge=1, le=1024)] = 1
    """Workers that divide the budget where it is not shared."""


class Serving(Section):
    """Ports, limits and the drain."""

    host: Address = "0.0.0.0"
    """Address that the servers listen on."""
    http_port: Port = names.HTTP_PORT
    """Open Inference Protocol over HTTP; 0 takes a free one."""
    grpc_port: Port = names.GRPC_PORT
    """Open Inference Protocol over gRPC."""
    metrics_port: Port = names.METRICS_PORT
    """/metrics, /healthz and /readyz."""
    control_port: Port = names.CONTROL_PORT
    """The control service."""
    introspection_port: Port = names.INTROSPECTION_PORT
    """Read-only JSON on loopback: /plan, /map, /models, /state, /explain, /regions."""
    max_queue: Annotated[int, pydantic.Field(ge=1, le=1 << 20)] = 1024
    """Requests waiting per model; one more is refused."""
    max_request_bytes: Size = 512 << 20
    """The largest body of a request."""
    max_held_bytes: Size = 4 << 30
    """Bodies that are held at one time, of all clients together; a request with more is refused with 503 and Retry-After, a
    call over gRPC with UNAVAILABLE. At least maxRequestBytes."""
    request_timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=3600)] = 60
    """Deadline of a request that brings none. An HTTP request that has not arrived, or an answer of which nothing leaves, for
    so long ends its connection."""
    header_timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=3600)] = 30
    """From the first byte of an HTTP request to the end of its headers; then 408, and the connection ends."""
    idle_timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=86400)] = 75
    """An HTTP connection without a request is closed after so long."""
    grace_seconds: Annotated[int, pydantic.Field(ge=1, le=86400)] = 300
    """terminationGracePeriodSeconds of the pod; a terminating worker admits until 15 s before its end."""

    @pydantic.model_validator(mode="after")
    def _ports_differ(self) -> Self:
        taken: dict[int, str] = {}
        for key, field in type(self).model_fields.items():
            port = getattr(self, key)
            if not key.endswith("_port") or port == 0:
                continue
            other = taken.setdefault(port, str(field.alias))
            if other != field.alias:
                raise ValueError(
                    f"{other} and {field.alias} are both {port}: give one another port, or 0 for a free one"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _held(self) -> Self:
        if self.max_held_bytes < self.max_request_bytes:
            raise ValueError(
                f"maxHeldBytes is {self.max_held_bytes} and maxRequestBytes {self.max_request_bytes}: a request of that size "
                "would never be taken; raise maxHeldBytes, or lower maxRequestBytes"
            )
        return self


class Build(Section):
    """The builder process."""

    parallelism: Annotated[int, pydantic.Field(ge=1, le=64)] = 1
    """Builder processes at one time."""
    timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=86400)] = 1800
    """A build that takes longer is ended and has failed."""


class Control(Section):
    """The control service."""

    tls_directory: Place | None = None
    """Directory with ca.crt, tls.crt and tls.key, read again at each connection: mutual TLS, and only a client whose
    certificate carries the operator's name is heard. None: plain text, on loopback only."""


class WorkerConfig(Section):
    """A worker's whole configuration."""

    name: WorkerName = "worker"
    """In logs, metrics and reports; the name of the pod."""
    namespace: Annotated[str, pydantic.Field(max_length=63)] = ""
    """Of the pod."""
    node: Annotated[str, pydantic.Field(max_length=253)] = ""
    """On which the pod runs."""
    backend: Literal["cpu", "cuda"] = "cpu"
    """What executes the models."""
    managed: bool = False
    """An operator assigns the models. False: serve `models` and every bundle of `modelDirectory`."""
    model_directory: Place | None = None
    """Every folder in it that has a manifest.yaml is served under the folder's name."""
    models: Annotated[tuple[ModelEntry, ...], pydantic.Field(max_length=MAX_MODELS)] = ()
    """Bundles to serve beside modelDirectory, each with its settings; no name may also be that of a folder in it."""
    stores: dict[str, Place] = {}
    """Claim name to mount path, for pvc:// uris."""
    executable_store: Place = Path("~/.cache/ballast/executables")
    """Where compiled programs are kept over restarts."""
    state_directory: Place = Path("~/.local/state/ballast")
    """Last assignment, culprit journal and quarantine."""
    device: Device = Device()
    host: Host = Host()
    serving: Serving = Serving()
    build: Build = Build()
    control: Control = Control()
    log_level: LogLevel = LogLevel.INFO
    """The least that is logged: debug (each load and eviction, too), info, warning or error."""
    compaction_interval: Annotated[int, pydantic.Field(ge=0, le=1 << 30)] = 0
    """Compact after so many loads that requests waited for; 0 never. For a worker without an operator."""

    @pydantic.field_validator("models")
    @classmethod
    def _names_are_unique(cls, models: tuple[ModelEntry, ...]) -> tuple[ModelEntry, ...]:
        seen: dict[str, int] = {}
        for index, entry in enumerate(models):
            first = seen.setdefault(entry.name, index)
            if first != index:
                raise ValueError(f"entries {first} and {index} are both called '{entry.name}': give one another name")
        return models
