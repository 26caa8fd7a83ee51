# SPDX-License-Identifier: Apache-2.0
"""What a worker is to serve: the assignment, its check when it arrives, and the file it survives a restart in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ballast_contract.config import MAX_MODELS, ResidencyWish
from ballast_contract.residency import WISHES
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.bundle.placing import replace_file
from ballast_worker.control.kept import read_json
from ballast_worker.serving.catalog import Endpoint

_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{64})?")
_FORMAT: Final = 1


class NotKeptError(Exception):
    """An assignment that cannot be written to the state directory; the message names it. It is not carried out."""


class AssignmentError(ValueError):
    """An assignment that cannot be accepted as a whole; the message names model, value and rule."""


@dataclass(frozen=True, slots=True)
class AssignedModel:
    """One model that this worker is to serve. Equal specs mean nothing has changed.

    Attributes:
        name: what clients call.
        object: namespace/name of its InferenceModel; empty without an operator.
        uri: where its bundle is.
        digest: of the bundle; empty accepts any.
        residency: what the user wants of its weights.
        max_batch: rows in one execution; 0 is the largest compiled size.
        max_delay_milliseconds: how long rows may wait for company while the device is busy.
    """

    name: str
    uri: str
    object: str = ""
    digest: str = ""
    residency: ResidencyWish = ResidencyWish.UNPINNED
    max_batch: int = 0
    max_delay_milliseconds: int = 0

    @property
    def source(self) -> tuple[str, str]:
        """What decides which bytes are served."""
        return self.uri, self.digest

    @property
    def fingerprint(self) -> str:
        """Everything that a user may change to have a quarantined model tried again."""
        return json.dumps(
            [self.uri, self.digest, self.residency.value, self.max_batch, self.max_delay_milliseconds],
            separators=(",", ":"),
        )


@dataclass(frozen=True, slots=True)
class Hop:
    """A worker of the pool that holds a model."""

    worker: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Routes:
    """Which workers hold which models.

    Attributes:
        version: of the operator's table; 0 before the first.
        table: model to workers, best first.
    """

    version: int = 0
    table: Mapping[str, tuple[Hop, ...]] = field(default_factory=dict)

    def apply(self, message: pb.RouteTable) -> Routes:
        """The table after a message; unchanged when the message extends another version than this one."""
        if message.base_version not in (0, self.version):
            return self
        table = dict(self.table) if message.base_version else {}
        for route in message.routes:
            hops = tuple(Hop(e.worker, Endpoint(e.host, e.http_port, e.grpc_port)) for e in route.workers)
            if hops:
                table[route.model] = hops
            else:
                table.pop(route.model, None)
        return Routes(message.version, table)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The last accepted assignment.

    Attributes:
        epoch: the highest that was seen, of the operator that said so.
        generation: of the assignment; None before the first.
        models: in the order given, names unique.
        routes: of the pool.
        node_workers: of the pool on this node; 0 is not known.
    """

    epoch: int = 0
    generation: int | None = None
    models: tuple[AssignedModel, ...] = ()
    routes: Routes = Routes()
    node_workers: int = 0

    def accept(self, request: pb.ApplyAssignmentRequest) -> Assignment:
        """The assignment after a request of the operator.

        Raises:
            AssignmentError: there are too many models, a name or uri is missing or comes twice, a digest or residency
                cannot be read.
        """
        check_number(len(request.models))
        models = tuple(_model(message) for message in request.models)
        check_names(models)
        routes = self.routes.apply(request.routes) if request.HasField("routes") else self.routes
        epoch = max(self.epoch, request.epoch)
        return Assignment(epoch, request.generation, models, routes, request.node_workers)

    def with_epoch(self, epoch: int) -> Assignment:
        """The same models, said to be of a higher epoch."""
        return replace(self, epoch=max(self.epoch, epoch))


def check_number(models: int) -> None:
    """Refuse more models than a worker serves.

    Raises:
        AssignmentError: it says the limit.
    """
    if models > MAX_MODELS:
        raise AssignmentError(
            f"{models} models are more than the {MAX_MODELS} that one worker takes: give some of them to other workers"
        )


def check_names(models: Sequence[AssignedModel]) -> None:
    """Refuse two models of one name.

    Raises:
        AssignmentError: it names both.
    """
    seen: dict[str, AssignedModel] = {}
    for model in models:
        other = seen.setdefault(model.name, model)
        if other is not model:
            raise AssignmentError(
                f"two models are called '{model.name}': {other.object or other.uri} and {model.object or model.uri}; "
                "give one of them another name"
            )


def _model(message: pb.AssignedModel) -> AssignedModel:
    if not message.name or len(message.name) > 253:
        raise AssignmentError(f"a model's name has 1 to 253 characters, not {len(message.name)}")
    if not message.uri:
        raise AssignmentError(f"model '{message.name}' has no uri")
    if _DIGEST.fullmatch(message.digest) is None:
        raise AssignmentError(
            f"model '{message.name}': digest '{message.digest}' is not sha256: and 64 hexadecimal digits"
        )
    wish = WISHES.get(message.residency)
    if wish is None:
        raise AssignmentError(f"model '{message.name}': residency {message.residency} is none of {sorted(WISHES)}")
    return AssignedModel(
        name=message.name,
        uri=message.uri,
        object=message.object,
        digest=message.digest,
        residency=wish,
        max_batch=message.batching.max_size,
        max_delay_milliseconds=message.batching.max_delay_milliseconds,
    )


class AssignmentFile:
    """The last accepted assignment on disk, so that a restarted worker serves without its operator."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "assignment.json"

    def load(self) -> Assignment:
        """The assignment, or an empty one when there is none that can be read."""
        try:
            return _from_json(read_json(self._path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Assignment()

    def save(self, assignment: Assignment) -> None:
        """Write the assignment as a whole; returns when it would survive a crash.

        Raises:
            NotKeptError: the state directory cannot be written.
        """
        try:
            replace_file(self._path, json.dumps(_to_json(assignment), sort_keys=True).encode(), mode=0o600)
        except OSError as error:
            raise NotKeptError(
                f"stateDirectory '{self._path.parent}' cannot be written: {error.strerror or error}: nothing is accepted "
                "that a restart would not know; make it writable, and call again"
            ) from error


def _to_json(assignment: Assignment) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "epoch": assignment.epoch,
        "generation": assignment.generation,
        "node_workers": assignment.node_workers,
        "models": [
            {
                "name": m.name,
                "uri": m.uri,
                "object": m.object,
                "digest": m.digest,
                "residency": m.residency.value,
                "max_batch": m.max_batch,
                "max_delay_milliseconds": m.max_delay_milliseconds,
            }
            for m in assignment.models
        ],
        "routes": {
            "version": assignment.routes.version,
            "table": {
                model: [[h.worker, h.endpoint.host, h.endpoint.http_port, h.endpoint.grpc_port] for h in hops]
                for model, hops in assignment.routes.table.items()
            },
        },
    }


def _from_json(data: Mapping[str, Any]) -> Assignment:
    if data["format"] != _FORMAT:
        raise ValueError("another format")
    models = tuple(AssignedModel(**{**m, "residency": ResidencyWish(m["residency"])}) for m in data["models"])
    table = {
        model: tuple(Hop(worker, Endpoint(host, http, grpc)) for worker, host, http, grpc in hops)
        for model, hops in data["routes"]["table"].items()
    }
    routes = Routes(data["routes"]["version"], table)
    return Assignment(data["epoch"], data["generation"], models, routes, data.get("node_workers", 0))
