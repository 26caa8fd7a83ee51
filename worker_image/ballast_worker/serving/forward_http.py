# SPDX-License-Identifier: Apache-2.0
"""Passing an HTTP request on to another worker of the pool: one hop, body untouched, connections used again.

Inference changes nothing, so a request whose connection breaks before an answer is sent again elsewhere, as long as all
of it is still here: a body of at most `WINDOW` bytes is read to its end first; a larger one goes on as it comes, once the
other worker has said that it wants it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ballast_contract.names import FORWARDED_HEADER
from ballast_worker.serving.catalog import Endpoint
from ballast_worker.serving.http_message import HttpRequest
from ballast_worker.serving.http_stream import Stream
from ballast_worker.serving.http_upstream import Upstream, connect
from ballast_worker.serving.http_upstream_answer import UpstreamAnswer

_IDLE_PER_ENDPOINT: Final = 8
_ENDPOINTS: Final = 256
"""Endpoints to which idle connections are kept."""

_REQUEST_HEADERS: Final = (
    b"content-type", b"content-encoding", b"inference-header-content-length", b"accept-encoding",
)  # fmt: skip


class LostError(Exception):
    """A part of the body has gone to a worker that did not answer, or a part of its answer came: the call cannot be passed on a
    second time.
    """


class HttpForwarder:
    """Requests to other workers. Belongs to the event loop."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._idle: OrderedDict[Endpoint, list[Upstream]] = OrderedDict()

    async def forward(
        self, endpoints: Sequence[Endpoint], request: HttpRequest, stream: Stream | None = None
    ) -> UpstreamAnswer | None:
        """The answer of the first endpoint that has the model; None when none of them does or can be reached.

        Args:
            endpoints: whom to ask, best first.
            request: what to ask.
            stream: its body, where that is still coming. None: `request.body`.

        Raises:
            LostError: see there.
            TimeoutError: the time for a request is over, and its answer has not begun. A stream has as much time from when it is
                wanted, and the answer as much again from when all of it was sent.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_seconds) as limit:

            def turned() -> None:
                if not limit.expired():
                    limit.reschedule(loop.time() + self._timeout_seconds)

            for endpoint in endpoints:
                answer = await self._ask(endpoint, request, stream, turned)
                if answer is None:
                    continue
                if answer.status != 404:
                    return answer
                await answer.dismiss()
                if stream is not None and stream.taken:
                    raise LostError
        return None

    def close(self) -> None:
        """Close idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _ask(
        self, endpoint: Endpoint, request: HttpRequest, stream: Stream | None, turned: Callable[[], None]
    ) -> UpstreamAnswer | None:
        head = _head(request, endpoint, stream)
        while True:
            upstream = self._take(endpoint)
            reused = upstream is not None
            if upstream is None:
                upstream = await connect(endpoint, partial(self._give_back, endpoint))
                if upstream is None:
                    return None
            try:
                return await upstream.ask(head, request.body if stream is None else stream, turned)
            except ConnectionError as error:
                if stream is not None and stream.taken:
                    raise LostError from error
                if not reused:
                    return None  # otherwise it was closed while it was idle: the next one, or a fresh one
            except BaseException:
                upstream.close()
                raise

    def _take(self, endpoint: Endpoint) -> Upstream | None:
        idle = self._idle.get(endpoint, [])
        while idle:
            upstream = idle.pop()
            if upstream.usable:
                return upstream
        return None

    def _give_back(self, endpoint: Endpoint, upstream: Upstream) -> None:
        idle = self._idle.setdefault(endpoint, [])
        self._idle.move_to_end(endpoint)
        if len(idle) < _IDLE_PER_ENDPOINT:
            idle.append(upstream)
        else:
            upstream.close()
        if len(self._idle) > _ENDPOINTS:
            for old in self._idle.popitem(last=False)[1]:
                old.close()


def _head(request: HttpRequest, endpoint: Endpoint, stream: Stream | None) -> bytes:
    # HEAD goes on as GET: whoever answers the client leaves the body out.
    method = b"GET" if request.method == b"HEAD" else request.method
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    length = len(request.body) if stream is None else stream.length
    return b"".join(
        (
            b"%s %s HTTP/1.1\r\nHost: %s:%d\r\n" % (method, request.target, host.encode(), endpoint.http_port),
            b"%s: 1\r\n" % FORWARDED_HEADER.encode(),
            b"Transfer-Encoding: chunked\r\n" if length is None else b"Content-Length: %d\r\n" % length,
            b"" if stream is None else b"Expect: 100-continue\r\n",
            *(b"%s: %s\r\n" % (name, request.headers[name]) for name in _REQUEST_HEADERS if name in request.headers),
            b"\r\n",
        )
    )
