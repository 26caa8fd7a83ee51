# SPDX-License-Identifier: Apache-2.0
"""The limit: the same writes by a bare client that reads nothing, decides nothing and keeps no caches."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import ENDPOINT_SLICES, MODELS, SERVICES, Resource
from benchmarks.operator.ground import Ground
from benchmarks.operator.watching import session_of

PARALLEL: Final = 32

_APPLY: Final = "application/apply-patch+yaml"

Call = tuple[str, str, dict[str, str], bytes, str]
"""Method, path, query, body, content type."""


async def create(kubeconfig: Path, bodies: Sequence[Object]) -> float:
    """Create InferenceModels as fast as they are taken, so many at a time; returns the seconds."""
    return await _send(kubeconfig, [_creation(MODELS, body) for body in bodies])


async def repeat(ground: Ground, namespace: str, source: str, writes: Counter[str]) -> float:
    """Write in `namespace` what the operator wrote in `source`; returns the seconds.

    Objects are written as they are in `source`; statuses as often as the operator applied one, half of a model's
    applications carrying the assignment alone.
    """
    models = (await ground.client.list(MODELS, source)).items
    services = (await ground.client.list(SERVICES, source, labels="ballast.dev/model")).items
    slices = (await ground.client.list(ENDPOINT_SLICES, source, labels="ballast.dev/model")).items
    calls = [_creation(MODELS, _copy(model, namespace, "spec")) for model in models]
    calls += _cycle(writes["create services"], services, lambda o, n: _service(o, namespace, n))
    calls += _cycle(writes["create endpointslices"], slices, lambda o, n: _slice(o, namespace, n))
    statuses = _cycle(writes["apply inferencemodels"], models, lambda o, n: _status(o, namespace, n))
    return await _send(ground.kubeconfig, calls) + await _send(ground.kubeconfig, statuses)


async def _send(kubeconfig: Path, calls: Iterable[Call]) -> float:
    waiting = iter(list(calls))
    async with session_of(kubeconfig) as session:
        started = time.monotonic()
        async with asyncio.TaskGroup() as senders:
            for _ in range(PARALLEL):
                senders.create_task(_sender(session, waiting))
        return time.monotonic() - started


async def _sender(session: aiohttp.ClientSession, waiting: Iterator[Call]) -> None:
    for method, path, query, body, content in waiting:
        headers = {"Content-Type": content}
        async with session.request(method, path, params=query, data=body, headers=headers) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status}: {text[:500].decode(errors='replace')}")


def _cycle(count: int, objects: Sequence[Object], call: Callable[[Object, int], Call]) -> list[Call]:
    """So many calls over the objects, round by round."""
    return [call(objects[n % len(objects)], n // len(objects)) for n in range(count)] if objects else []


def _creation(resource: Resource, body: Object) -> Call:
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    path = resource.path(namespace=body["metadata"]["namespace"])
    return "POST", path, {"fieldValidation": "Strict"}, json.dumps(whole).encode(), "application/json"


def _copy(obj: Object, namespace: str, *parts: str, turn: int = 0) -> Object:
    name = obj["metadata"]["name"] + (f"-{turn}" if turn else "")
    metadata = {"name": name, "namespace": namespace, "labels": obj["metadata"].get("labels", {})}
    return {"metadata": metadata, **{part: obj[part] for part in parts if part in obj}}


def _service(obj: Object, namespace: str, turn: int) -> Call:
    body = _copy(obj, namespace, "spec", turn=turn)
    own = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
    body["spec"] = {key: value for key, value in body["spec"].items() if key not in own}
    return _creation(SERVICES, body)


def _slice(obj: Object, namespace: str, turn: int) -> Call:
    return _creation(ENDPOINT_SLICES, _copy(obj, namespace, "addressType", "ports", "endpoints", turn=turn))


def _status(obj: Object, namespace: str, turn: int) -> Call:
    """In turns the assignment by its manager and the rest by the other, each time with something that changed."""
    name, status = obj["metadata"]["name"], dict(obj.get("status", {}))
    assignment = {**status.pop("assignment", {}), "generation": turn + 1}
    rest = {**status, "loadMilliseconds": turn}
    manager, part = ("placement", {"assignment": assignment}) if turn % 2 == 0 else ("operator", rest)
    body = {
        "apiVersion": MODELS.api_version,
        "kind": MODELS.kind,
        "metadata": {"namespace": namespace, "name": name},
        "status": part,
    }
    path = MODELS.path(namespace=namespace, name=name, subresource="status")
    query = {"fieldManager": manager, "force": "true", "fieldValidation": "Ignore"}
    return "PATCH", path, query, json.dumps(body).encode(), _APPLY
