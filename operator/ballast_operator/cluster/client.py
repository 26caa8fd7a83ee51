# SPDX-License-Identifier: Apache-2.0
"""One thin asynchronous client of the API server: plain dicts in and out, server-side apply, the server's own errors.

Typed models cost ten times the parsing and refuse objects that the server accepts, so none are used.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from ballast_operator.cluster import errors
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.limiter import Priority, TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import MANAGED_BY, Resource

Object = dict[str, Any]

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_MERGE_PATCH: Final = "application/merge-patch+json"

_IDEMPOTENT: Final = frozenset({"get", "list", "apply", "delete"})
_ATTEMPTS: Final = 4
_TURNS_TO_CLOSE: Final = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list at one version of the store."""

    items: tuple[Object, ...]
    resource_version: str


class Client:
    """Calls of one process. Every call has a time limit; writes go through one token bucket.

    A call is retried when that is safe: after 429 always, after no answer or an error of the server when the verb is
    idempotent. The delay is what the server asks for, else grows from 0.1 s with jitter.
    """

    def __init__(
        self,
        access: Access,
        *,
        metrics: ClusterMetrics,
        writes: TokenBucket,
        timeout: float = 30.0,
        user_agent: str = "ballast-operator",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make one; `may_write` is asked before each attempt at a write, which else is `Fenced`."""
        self._access = access
        self._rest = RESTClientObject(access.configuration)
        self._host = access.configuration.host.rstrip("/")
        self._metrics = metrics
        self._writes = writes
        self._timeout = timeout
        self._user_agent = user_agent
        self._sleep = sleep
        self._may_write = may_write

    async def close(self) -> None:
        """Close the connections, and let the loop turn until their sockets are closed: it may end after this."""
        await self._rest.close()
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Read one object. Raises NotFound."""
        return await self._call("get", resource, "GET", resource.path(namespace=namespace, name=name))

    async def get_path(self, path: str) -> Object:
        """Read a document outside the resources, such as /version or an OpenAPI schema."""
        return await self._call("get", None, "GET", path)

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str | None = None, chunk: int = 500
    ) -> Listing:
        """Read a whole collection in chunks; starts over when the continue token runs out on the way."""
        for attempt in range(_ATTEMPTS):
            try:
                items: list[Object] = []
                version = ""
                async for page in self._pages(resource, namespace, labels, chunk):
                    items += page["items"]
                    version = page["metadata"]["resourceVersion"]
                for item in items:  # a list leaves them out
                    item.setdefault("apiVersion", resource.api_version)
                    item.setdefault("kind", resource.kind)
                return Listing(tuple(items), version)
            except errors.Gone:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        manager: str = MANAGED_BY,
        subresource: str = "",
        validation: str = "Strict",
        priority: Priority = Priority.NORMAL,
    ) -> Object:
        """Server-side apply with force: the fields of the body become this manager's, those it leaves out go."""
        metadata = body["metadata"]
        path = resource.path(namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource)
        query = {"fieldManager": manager, "force": "true", "fieldValidation": validation}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._call("apply", resource, "PATCH", path, query, whole, content=_APPLY, priority=priority)

    async def apply_status(
        self, resource: Resource, body: Object, *, manager: str, priority: Priority = Priority.NORMAL
    ) -> Object:
        """Server-side apply of `status`. The body's metadata should carry the uid: another object is then a Conflict.

        An object that is gone is a NotFound; apply would create it, but not through a subresource. Fields that the
        installed definition does not declare are Invalid, all of the status with them.
        """
        return await self.apply(
            resource, body, manager=manager, subresource="status", validation="Ignore", priority=priority
        )

    async def create(self, resource: Resource, body: Object, *, priority: Priority = Priority.NORMAL) -> Object:
        """Create an object. Raises AlreadyExists, Invalid, Forbidden. Not repeated after a lost answer."""
        path = resource.path(namespace=body["metadata"].get("namespace"))
        query = {"fieldManager": MANAGED_BY, "fieldValidation": "Strict"}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._call("create", resource, "POST", path, query, whole, priority=priority)

    async def replace(self, resource: Resource, body: Object, *, priority: Priority = Priority.NORMAL) -> Object:
        """Replace an object at its resourceVersion. Raises Conflict."""
        metadata = body["metadata"]
        path = resource.path(namespace=metadata.get("namespace"), name=metadata["name"])
        return await self._call("update", resource, "PUT", path, {}, body, priority=priority)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Object,
        *,
        subresource: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Object:
        """A merge patch. Raises Conflict when it names another resourceVersion than the object has."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        query = {"fieldManager": MANAGED_BY}
        return await self._call("patch", resource, "PATCH", path, query, body, content=_MERGE_PATCH, priority=priority)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Delete this very object. One that is gone already is fine; another of the name is a Conflict.

        A policy may say no with the code of a conflict: that is Refused as any other no.
        """
        body: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        path = resource.path(namespace=namespace, name=name)
        try:
            try:
                await self._call("delete", resource, "DELETE", path, {}, body, priority=priority)
            except errors.Conflict as error:
                if (await self.get(resource, namespace, name))["metadata"]["uid"] != uid:
                    raise
                raise errors.Refused(error.message, status=error.status, call=f"delete {path}") from error
        except errors.NotFound:
            return

    async def _pages(
        self, resource: Resource, namespace: str | None, labels: str | None, chunk: int
    ) -> AsyncIterator[Object]:
        query = {"limit": str(chunk)}
        if labels:
            query["labelSelector"] = labels
        while True:
            page = await self._call("list", resource, "GET", resource.path(namespace=namespace), query)
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    async def _call(
        self,
        verb: str,
        resource: Resource | None,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = _JSON,
        priority: Priority | None = None,
    ) -> Object:
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        kind = resource.plural if resource else "other"
        if priority is not None:
            started = time.monotonic()
            await self._writes.acquire(priority)
            self._metrics.write_wait_seconds.labels(priority.name.lower()).observe(time.monotonic() - started)
        for attempt in range(_ATTEMPTS):
            if priority is not None and not self._may_write():
                raise errors.Fenced("nothing is written any more: the Lease has run out", call=f"{verb} {path}")
            try:
                return await self._once(verb, kind, method, url, body, content, f"{verb} {path}")
            except errors.Unavailable as error:
                safe = verb in _IDEMPOTENT or error.status == 429
                if not safe or attempt == _ATTEMPTS - 1:
                    raise
                delay = error.retry_after if error.retry_after is not None else 0.1 * 4**attempt
                await self._sleep(min(delay, self._timeout) * random.uniform(1.0, 1.25))  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    async def _once(self, verb: str, kind: str, method: str, url: str, body: Any, content: str, call: str) -> Object:
        headers = {"Accept": _JSON, "User-Agent": self._user_agent, "Content-Type": content}
        started = time.monotonic()
        code = "none"
        try:
            headers |= await self._access.headers()
            async with asyncio.timeout(self._timeout):
                answer = await self._rest.request(  # type: ignore[no-untyped-call]
                    method, url, headers, body, _request_timeout=self._timeout
                )
                raw = await answer.read()
            code = str(answer.status)
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as error:
            what = f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            raise errors.Unavailable(what or type(error).__name__, call=call) from error
        finally:
            self._metrics.api_seconds.labels(verb, kind, code).observe(time.monotonic() - started)
        parsed = _parse(raw)
        if answer.status >= 400:
            raise errors.from_answer(answer.status, parsed, retry_after=_seconds(answer.headers), call=call)
        return parsed


def _parse(raw: bytes) -> Object:
    try:
        parsed = json.loads(raw) if raw else {}
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"raw": raw[:2000].decode(errors="replace")}


def _seconds(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
