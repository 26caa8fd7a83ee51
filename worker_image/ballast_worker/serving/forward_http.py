# SPDX-License-Identifier: Apache-2.0
"""Passing an HTTP request on to another worker of the pool: one hop, body untouched, connections used again.

Inference changes nothing, so a request whose connection breaks before an answer is sent again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

from ballast_contract.names import FORWARDED_HEADER
from ballast_worker.serving.catalog import Endpoint
from ballast_worker.serving.http_message import HttpRequest

_CONNECT_SECONDS: Final = 2.0
_IDLE_PER_ENDPOINT: Final = 8
_ENDPOINTS: Final = 256
"""Endpoints to which idle connections are kept."""

_REQUEST_HEADERS: Final = (
    b"content-type", b"content-encoding", b"inference-header-content-length", b"accept-encoding",
)  # fmt: skip
_ANSWER_HEADERS: Final = (b"inference-header-content-length", b"retry-after", b"allow", b"content-encoding")


@dataclass(slots=True)
class Answer:
    """What the other worker said."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        """Of the body."""
        return self.headers.get(b"content-type", b"application/json").decode("latin-1")

    @property
    def passed_headers(self) -> list[str]:
        """Header lines that the client gets too."""
        return [
            f"{name.decode().title()}: {self.headers[name].decode('latin-1')}"
            for name in _ANSWER_HEADERS
            if name in self.headers
        ]


class HttpForwarder:
    """Requests to other workers. Belongs to the event loop."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._idle: OrderedDict[Endpoint, list[_Connection]] = OrderedDict()

    async def forward(self, endpoints: Sequence[Endpoint], request: HttpRequest) -> Answer | None:
        """The answer of the first endpoint that has the model; None when none of them does or can be reached.

        Raises:
            TimeoutError: the time for a request is over.
        """
        async with asyncio.timeout(self._timeout_seconds):
            for endpoint in endpoints:
                answer = await self._ask(endpoint, _encode(request, endpoint))
                if answer is not None and answer.status != 404:
                    return answer
        return None

    def close(self) -> None:
        """Close idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _ask(self, endpoint: Endpoint, message: Sequence[bytes]) -> Answer | None:
        while True:
            connection = self._take(endpoint)
            reused = connection is not None
            if connection is None:
                connection = await _connect(endpoint)
                if connection is None:
                    return None
            try:
                answer = await connection.ask(message)
            except ConnectionError:
                if reused:
                    continue  # it was closed while it was idle: the next one, or a fresh one
                return None
            except BaseException:
                connection.close()
                raise
            self._give_back(endpoint, connection)
            return answer

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        idle = self._idle.get(endpoint)
        return idle.pop() if idle else None

    def _give_back(self, endpoint: Endpoint, connection: _Connection) -> None:
        idle = self._idle.setdefault(endpoint, [])
        self._idle.move_to_end(endpoint)
        if connection.reusable and len(idle) < _IDLE_PER_ENDPOINT:
            idle.append(connection)
        else:
            connection.close()
        if len(self._idle) > _ENDPOINTS:
            for old in self._idle.popitem(last=False)[1]:
                old.close()


class _Connection(asyncio.Protocol):
    """One connection to another worker, with one request at a time. Also the callbacks of httptools' parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer = Answer()
        self._waiter: asyncio.Future[Answer] | None = None
        self.reusable = True

    async def ask(self, message: Sequence[bytes]) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            ConnectionError: the connection broke first.
        """
        if self._transport.is_closing():
            raise ConnectionResetError
        self._answer = Answer()
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.writelines(message)
        return await self._waiter

    def close(self) -> None:
        """Close it."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        del exc
        self._broken()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
            self._broken()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self._answer.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._answer.body.append(body)

    def on_message_complete(self) -> None:
        """It is complete."""
        self._answer.status = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._answer)

    def _broken(self) -> None:
        self.reusable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError())


async def _connect(endpoint: Endpoint) -> _Connection | None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, endpoint.host, endpoint.http_port
            )
    except (OSError, TimeoutError):
        return None
    return connection


def _encode(request: HttpRequest, endpoint: Endpoint) -> Sequence[bytes]:
    # HEAD goes on as GET: whoever answers the client leaves the body out.
    method = b"GET" if request.method == b"HEAD" else request.method
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    lines = [
        b"%s %s HTTP/1.1\r\nHost: %s:%d\r\n" % (method, request.target, host.encode(), endpoint.http_port),
        b"%s: 1\r\nContent-Length: %d\r\n" % (FORWARDED_HEADER.encode(), len(request.body)),
        *(b"%s: %s\r\n" % (name, request.headers[name]) for name in _REQUEST_HEADERS if name in request.headers),
        b"\r\n",
    ]
    start = b"".join(lines)
    return [start, request.body] if request.body else [start]
