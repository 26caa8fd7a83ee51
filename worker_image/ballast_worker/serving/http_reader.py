# SPDX-License-Identifier: Apache-2.0
"""The requests in the bytes of one connection, within the limits of a head and a body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import httptools

from ballast_worker.serving.bodies import RETRY_SECONDS, Bodies, BodiesFullError, Share
from ballast_worker.serving.http_limits import MAX_HEAD_BYTES
from ballast_worker.serving.http_message import HttpRequest

_HEAD_TOO_LARGE: Final = f"request line and headers exceed {MAX_HEAD_BYTES} bytes"


class RefusedError(Exception):
    """Bytes that are not read any further.

    Attributes:
        status: HTTP status.
        headers: further lines of the answer.
    """

    def __init__(self, status: int, message: str, headers: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class Receiver(Protocol):
    """Who gets the requests."""

    def head_read(self, request: HttpRequest, length: int | None, *, current: bool, keep_alive: bool) -> None:
        """Its body begins.

        Args:
            request: without its body.
            length: bytes of the body; None: it comes in chunks.
            current: HTTP/1.1, and no earlier version.
            keep_alive: the client wants another answer on the connection.
        """
        ...

    def request_read(self) -> None:
        """All of it was read."""
        ...


class RequestReader:
    """Also the callbacks of httptools' parser, whose exceptions end the reading.

    Attributes:
        under_way: a request has begun, and not come to its end.
    """

    def __init__(self, receiver: Receiver, *, max_body_bytes: int, bodies: Bodies) -> None:
        self._receiver = receiver
        self._max_body_bytes = max_body_bytes
        self._bodies = bodies
        self._share: Share | None = None
        # The parser holds the callbacks, and they hold the parser: `close` ends that.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._barren = 0
        self.under_way = False

    def read(self, data: bytes) -> None:
        """Parse what has come.

        Raises:
            RefusedError: it is no HTTP/1.1, or exceeds a limit.
        """
        parser = self._parser
        if parser is None:
            return
        self._barren += len(data)
        kept = len(self._body)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RefusedError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise RefusedError(400, f"the request is not HTTP/1.1: {error}") from error
        if self._barren > MAX_HEAD_BYTES:
            raise RefusedError(431, _HEAD_TOO_LARGE)
        if len(self._body) > kept + 1:  # chunks of a few bytes would take many times their size
            self._body[kept:] = [b"".join(self._body[kept:])]

    def close(self) -> None:
        """Read nothing any more, and forget what has come of a body."""
        self._parser, self._body = None, []
        if self._share is not None:
            self._share.give_back()

    def body(self) -> bytes:
        """What has come of the body since it was asked for last."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        return body

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = {}
        self._body = []
        self._head_bytes = self._body_bytes = 0
        self.under_way = True

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise RefusedError(501, f"Transfer-Encoding is {value.decode('latin-1')!r}: only chunked is read")
        self._headers[name] = value
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._barren = 0
        parser = self._parser
        if parser is None:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            raise RefusedError(431, _HEAD_TOO_LARGE)
        if parser.should_upgrade():
            raise RefusedError(501, "no other protocol is spoken here: send HTTP/1.1 without Upgrade")
        headers, self._headers = self._headers, {}  # headers behind the body are none of the request
        told = headers.get(b"content-length")
        length = int(told) if told is not None else None if b"transfer-encoding" in headers else 0
        if length is not None and length > self._max_body_bytes:
            raise RefusedError(413, _too_large(length, self._max_body_bytes))
        current = parser.get_http_version() == "1.1"
        self._share = Share(self._bodies)
        self._receiver.head_read(
            HttpRequest(parser.get_method(), self._url, headers, b"", self._share),
            length,
            current=current,
            keep_alive=current and parser.should_keep_alive(),
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._barren = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            raise RefusedError(413, _too_large(self._body_bytes, self._max_body_bytes))
        if self._parser is None or self._share is None:
            return
        try:
            self._share.take(len(body))
        except BodiesFullError as error:
            raise RefusedError(503, str(error), [f"Retry-After: {RETRY_SECONDS}"]) from error
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._barren = 0
        self.under_way, self._share = False, None  # its request has it
        self._receiver.request_read()


def _too_large(nbytes: int, limit: int) -> str:
    return f"the body has {nbytes} bytes or more; serving.maxRequestBytes is {limit}: send less, or raise it"
