# SPDX-License-Identifier: Apache-2.0
"""A connection to another worker: one request at a time, both bodies as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import httptools

from ballast_worker.serving.catalog import Endpoint
from ballast_worker.serving.http_limits import MAX_HEAD_BYTES
from ballast_worker.serving.http_stream import Stream, Writer
from ballast_worker.serving.http_transport import BoundedProtocol
from ballast_worker.serving.http_upstream_answer import UpstreamAnswer

_CONNECT_SECONDS: Final = 2.0
_BODILESS: Final = (204, 304)


class Upstream(BoundedProtocol):
    """One connection to another worker. Also the callbacks of httptools' parser. Belongs to the event loop."""

    def __init__(self, free: Callable[[Upstream], None]) -> None:
        """Make one that is not connected.

        Args:
            free: told when an answer has come to its end and the connection can be used again.
        """
        super().__init__()
        self._free = free
        self._parser = httptools.HttpResponseParser(self)
        self._barren = 0
        self._going_on: asyncio.Future[bool] | None = None
        self._answer: asyncio.Future[UpstreamAnswer] | None = None
        self._outgoing: Stream | None = None
        self._sent = True
        self._writable = True
        self._incoming: Stream | None = None
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    @property
    def usable(self) -> bool:
        """It is open."""
        return not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes | Stream, turned: Callable[[], None]) -> UpstreamAnswer:
        """Send a request and wait for the head of its answer. Once in each answer's time.

        Args:
            head: of the request; with `Expect: 100-continue` before a stream, which is taken when the other worker wants it.
            body: of the request.
            turned: told when a stream is taken, and when it was taken to its end.

        Raises:
            ConnectionError: the connection broke first.
        """
        if not self.usable:
            raise ConnectionResetError
        loop = asyncio.get_running_loop()
        going_on: asyncio.Future[bool] = loop.create_future()
        answer: asyncio.Future[UpstreamAnswer] = loop.create_future()
        self._going_on, self._answer = going_on, answer
        self._sent = isinstance(body, bytes)

        def ended() -> None:
            self._outgoing, self._sent = None, True
            turned()

        if isinstance(body, bytes):
            self._transport.writelines((head, body) if body else (head,))
        else:
            self._transport.write(head)
            if await going_on and not answer.done():
                turned()
                self._outgoing = body
                body.hold(held=not self._writable)
                body.take(Writer(self._transport, chunked=body.length is None, ended=ended))
        return await answer

    def close(self) -> None:
        """Close it now."""
        self._transport.abort()
        self._lost()

    # asyncio.Protocol

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        del exc
        self._lost()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is None:
            self.close()  # nobody has asked
            return
        self._barren += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            return
        self._pass_on()
        if self._barren > MAX_HEAD_BYTES:
            self.close()

    # httptools

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._answer is None:
            raise ConnectionResetError  # nobody has asked
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise ConnectionResetError  # the client would not be told of the coding
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The body begins, or the other worker wants that of the request, or says something that is of no interest."""
        self._barren = 0
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, {}  # headers behind the body are none of the answer
        if self._answer is None or self._going_on is None or status == 101:
            raise ConnectionResetError  # nobody has asked
        if status >= 200:
            told = b"0" if status in _BODILESS else headers.get(b"content-length")
            self._incoming = Stream(None if told is None else int(told), regulate=self._regulate)
            if not self._answer.done():
                self._answer.set_result(UpstreamAnswer(status, headers, self._incoming, self.close))
            if not self._sent:
                self._give_up_request()
        if not self._going_on.done() and (status == 100 or status >= 200):
            self._going_on.set_result(status == 100)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._barren = 0
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        self._barren = 0
        if self._incoming is None:
            return  # it was no answer yet
        self._pass_on()
        incoming, self._incoming = self._incoming, None
        self._going_on = self._answer = None
        incoming.end()
        if self._sent and self._parser.should_keep_alive():
            self._free(self)
        else:
            self.close()

    def _pass_on(self) -> None:
        """Hand over what one read has brought."""
        if self._body and self._incoming is not None:
            piece, self._body = b"".join(self._body), []
            self._incoming.feed(piece)

    def _give_up_request(self) -> None:
        """The rest of the request is wanted by nobody."""
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.discard()

    def _lost(self) -> None:
        self._outgoing = None  # not discarded: whoever answers the client sees whom the call waited for
        if self._going_on is not None and not self._going_on.done():
            self._going_on.set_result(False)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())
            self._answer.exception()  # whoever asked may have gone
        if self._incoming is not None:
            self._incoming.break_off(ConnectionResetError())

    def _hold(self, *, held: bool) -> None:
        self._writable = not held
        if self._outgoing is not None:
            self._outgoing.hold(held=held)

    def _regulate(self) -> None:
        """Read only as long as the answer goes on."""
        self._pause(stop=self._incoming is not None and self._incoming.full)


async def connect(endpoint: Endpoint, free: Callable[[Upstream], None]) -> Upstream | None:
    """A fresh connection; None when there is none to be had within two seconds."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, upstream = await asyncio.get_running_loop().create_connection(
                lambda: Upstream(free), endpoint.host, endpoint.http_port
            )
    except (OSError, TimeoutError):
        return None
    return upstream
