# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on a bare transport: requests in, answers out in the order of the requests, everything bounded.

What a request means is the handler's affair. A connection holds at most one request that is being read and
`_PIPELINED` that wait for answers; beyond that, and while the client does not read its answers, nothing more is read.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import httptools
import orjson

from ballast_worker.serving.connections import CONNECTION_SECONDS, JITTER
from ballast_worker.serving.http_message import HttpRequest, head

_PIPELINED: Final = 32
"""Requests of one connection that wait for answers; more are not read."""

_MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of request line and headers."""

_LINGER_SECONDS: Final = 2.0
"""How long a connection is kept readable after a refusal, so that the client reads the answer before a reset."""

_JOINED_BYTES: Final = 32 << 10
"""Answers up to this size are put together before they are written; larger ones are written in pieces, uncopied."""

Pieces = Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    pieces: Pieces
    content_type: str
    headers: Sequence[str]


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and the place of its answer on the connection. `respond` is called once, on the event loop."""

    request: HttpRequest
    keep_alive: bool
    _connection: HttpConnection
    answer: _Answer | None = None

    def respond(
        self, status: int, pieces: Pieces, *, content_type: str = "application/json", headers: Sequence[str] = ()
    ) -> None:
        """Answer.

        Args:
            status: HTTP status.
            pieces: of the body; not changed until they are written.
            content_type: of the body.
            headers: further lines, as in `Retry-After: 1`.
        """
        self.answer = _Answer(status, pieces, content_type, headers)
        self._connection.flush()

    def respond_json(self, status: int, document: object, *, headers: Sequence[str] = ()) -> None:
        """Answer with a JSON document."""
        self.respond(status, [orjson.dumps(document)], headers=headers)


class HttpConnection(asyncio.Protocol):
    """One client. Also the callbacks of httptools' parser, whose exceptions end the connection."""

    def __init__(
        self, handle: Callable[[Exchange], None], closed: Callable[[HttpConnection], None], *, max_body_bytes: int
    ) -> None:
        self._handle = handle
        self._closed = closed
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._exchanges: deque[Exchange | bytes] = deque()
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._reading_since: float | None = None
        self._discarding = False
        self._paused = False
        self._client_reads = True
        self._closing = False
        self._used_at = time.monotonic()
        self._retires_at = time.monotonic() + CONNECTION_SECONDS * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        del exc
        self._closed(self)
        self._exchanges.clear()
        self._discarding = True

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._client_reads = False
        self._regulate()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._client_reads = True
        self._regulate()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._discarding:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, _RefusedError):
                raise
            self._refuse(cause.status, str(cause))
        except httptools.HttpParserError as error:
            if self._discarding:
                return  # data behind the last request of the connection
            self._refuse(400, f"the request is not HTTP/1.1: {error}")

    # httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = {}
        self._body = []
        self._head_bytes = self._body_bytes = 0
        self._reading_since = self._used_at = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers[name.lower()] = value
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The body begins."""
        if self._parser.should_upgrade():
            raise _RefusedError(501, "no other protocol is spoken here: send HTTP/1.1 without Upgrade")
        length = self._headers.get(b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            raise _RefusedError(413, _too_large(int(length), self._max_body_bytes))
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._exchanges.append(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.flush()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            raise _RefusedError(413, _too_large(self._body_bytes, self._max_body_bytes))
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._reading_since = None
        request = HttpRequest(self._parser.get_method(), self._url, self._headers, body)
        keep_alive = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1" and not self._closing
        exchange = Exchange(request, keep_alive, self)
        self._exchanges.append(exchange)
        if not exchange.keep_alive:
            self._discarding = True  # what follows on this connection is not for us
        self._handle(exchange)
        self._regulate()

    # Answers

    def flush(self) -> None:
        """Write the answers that are there, up to the first request that still waits for one."""
        while self._exchanges:
            first = self._exchanges[0]
            if isinstance(first, bytes):
                self._transport.write(first)
            elif first.answer is None:
                break
            else:
                going = self._closing or time.monotonic() >= self._retires_at
                last = going and len(self._exchanges) == 1 and self._reading_since is None
                self._used_at = time.monotonic()
                self._write(first, first.answer, keep_alive=first.keep_alive and not last)
                if last or not first.keep_alive:
                    self._exchanges.clear()
                    self._transport.close()
                    return
            self._exchanges.popleft()
        self._regulate()

    def retire(self) -> None:
        """Tell the client with the next answer to open another connection. Until then it stays open: closing one that is
        idle would lose a request that is on its way.
        """
        self._retires_at = 0.0

    def deserted(self, now: float) -> bool:
        """Nothing is under way, and nothing has been for so long that its client would have been told to leave it."""
        under_way = bool(self._exchanges) or self._reading_since is not None
        return not under_way and now - self._used_at > CONNECTION_SECONDS

    def finish(self) -> None:
        """Close after the answers that are under way; at once when there are none."""
        self._closing = True
        if not self._exchanges and self._reading_since is None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def stalled(self, now: float, seconds: float) -> bool:
        """A request has begun and not come to its end for longer than `seconds`."""
        return self._reading_since is not None and now - self._reading_since > seconds

    def time_out(self) -> None:
        """End a connection whose request does not come."""
        self._refuse(408, "the request did not arrive in time")

    def _write(self, exchange: Exchange, answer: _Answer, *, keep_alive: bool) -> None:
        length = sum(map(len, answer.pieces))
        start = head(answer.status, length, answer.content_type, answer.headers, keep_alive=keep_alive)
        pieces = () if exchange.request.method == b"HEAD" else answer.pieces
        if length <= _JOINED_BYTES:
            self._transport.write(b"".join((start, *pieces)))
        else:
            self._transport.writelines([start, *pieces])

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that cannot be read to its end, then close."""
        if self._transport.is_closing():
            return
        self._discarding = True
        self._reading_since = None
        body = orjson.dumps({"error": message})
        self._exchanges.append(head(status, len(body), "application/json", (), keep_alive=False) + body)
        self.flush()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise _RefusedError(431, f"request line and headers exceed {_MAX_HEAD_BYTES} bytes")

    def _regulate(self) -> None:
        """Read only as long as answers leave."""
        stop = len(self._exchanges) >= _PIPELINED or not self._client_reads
        if stop == self._paused or self._transport.is_closing():
            return
        self._paused = stop
        if stop:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class _RefusedError(Exception):
    """Raised in a callback of the parser to stop it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _too_large(nbytes: int, limit: int) -> str:
    return f"the body has {nbytes} bytes or more; serving.maxRequestBytes is {limit}: send less, or raise it"
