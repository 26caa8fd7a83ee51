# SPDX-License-Identifier: Apache-2.0
"""An HTTP request, and the head of an answer."""

from __future__ import annotations

import email.utils
import http
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ballast_worker.serving.bodies import Share


@dataclass(slots=True)
class HttpRequest:
    """A request.

    Attributes:
        method: in capitals.
        target: as on the request line, without a fragment.
        headers: names in lower case; of repeated ones the last.
        body: after chunked coding was undone; empty while it is still coming.
        share: of the memory for bodies, what this one takes.
    """

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    share: Share


_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}


class _Clock:
    """The Date header, made once a second."""

    second = 0
    line = b""

    @classmethod
    def date(cls) -> bytes:
        now = int(time.time())
        if now != cls.second:
            cls.second = now
            cls.line = b"Date: " + email.utils.formatdate(now, usegmt=True).encode() + b"\r\n"
        return cls.line


def head(
    status: int,
    length: int | None,
    content_type: str,
    headers: Sequence[str],
    *,
    keep_alive: bool,
    chunks: bool = True,
) -> bytes:
    """Status line and headers.

    Args:
        status: HTTP status.
        length: bytes of the body; None: not known.
        content_type: of the body.
        headers: further lines.
        keep_alive: another answer may follow on the connection.
        chunks: a body whose length is not known comes in chunks; False: it ends with the connection.
    """
    text = f"Content-Type: {content_type}\r\n"
    if length is not None:
        text += f"Content-Length: {length}\r\n"
    elif chunks:
        text += "Transfer-Encoding: chunked\r\n"
    for line in headers:
        text += f"{line}\r\n"
    if not keep_alive:
        text += "Connection: close\r\n"
    first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"".join((first, _Clock.date(), text.encode("latin-1"), b"\r\n"))
