# SPDX-License-Identifier: Apache-2.0
"""What a user would see of the models: a watch of the InferenceModels of one namespace, each event with its time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from ballast_operator.cluster.resources import MODELS


class ModelWatch:
    """The newest status of each model, by name. `events` counts those after the first list."""

    def __init__(self) -> None:
        self.statuses: dict[str, dict[str, Any]] = {}
        self.events = 0
        self.holding: Counter[str] = Counter()
        """Of each type of condition the number of models for which it is True."""
        self.version = "0"
        """Of the newest event: where the watch goes on when the server ends it, as it does when we read too slowly."""
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[float]]] = []

    async def until(self, so: Callable[[], bool], *, seconds: float) -> float:
        """Wait until something is so; returns when it was seen, in monotonic seconds. Raises TimeoutError."""
        if so():
            return time.monotonic()
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((so, turn))
        async with asyncio.timeout(seconds):
            return await turn

    def take(self, event: dict[str, Any], moment: float) -> None:
        """Take one event of the watch. Raises RuntimeError for an error of the server."""
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch of the models ended: {event['object'].get('message')}")
        name = event["object"]["metadata"]["name"]
        self.version = event["object"]["metadata"]["resourceVersion"]
        self.holding.subtract(_true(self.statuses.pop(name, {})))
        if event["type"] != "DELETED":
            status = self.statuses[name] = event["object"].get("status", {})
            self.holding.update(_true(status))
        self.events += 1
        for so, turn in self._waiting:
            if not turn.done() and so():
                turn.set_result(moment)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def fail(self, error: BaseException) -> None:
        """Nothing more is seen: tell those who wait."""
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(error)


@contextlib.asynccontextmanager
async def watch_models(kubeconfig: Path, namespace: str) -> AsyncIterator[ModelWatch]:
    """Watch the models of a namespace, which has none yet, for the block."""
    async with session_of(kubeconfig) as session:
        found = ModelWatch()
        task = asyncio.create_task(_follow(session, namespace, found), name="watch models")
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def session_of(kubeconfig: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A bare HTTP session with an administrator's certificate, for JSON without any client library."""
    config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = await asyncio.to_thread(_context, cluster, user, kubeconfig.parent)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        cluster["server"], connector=connector, timeout=timeout, read_bufsize=1 << 22
    ) as s:
        yield s


async def _follow(session: aiohttp.ClientSession, namespace: str, found: ModelWatch) -> None:
    try:
        while True:
            query = {"watch": "true", "resourceVersion": found.version, "timeoutSeconds": "3600"}
            async with session.get(MODELS.path(namespace=namespace), params=query) as answer:
                answer.raise_for_status()
                with contextlib.suppress(aiohttp.ClientPayloadError):
                    await _read(answer, found)
    except Exception as error:
        found.fail(error)
        raise


async def _read(answer: aiohttp.ClientResponse, found: ModelWatch) -> None:
    rest = b""
    async for chunk in answer.content.iter_any():
        moment = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            found.take(json.loads(line), moment)


def _context(cluster: dict[str, str], user: dict[str, str], folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile(dir=folder) as pair:  # OpenSSL reads certificates of its own from files alone
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


def _true(status: dict[str, Any]) -> list[str]:
    return [c["type"] for c in status.get("conditions", ()) if c["status"] == "True"]
