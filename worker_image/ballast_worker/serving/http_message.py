# SPDX-License-Identifier: Apache-2.0
"""An HTTP request that was read, and the head of an answer."""

from __future__ import annotations

import email.utils
import http
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class HttpRequest:
    """A request that was read completely.

    Attributes:
        method: in capitals.
        target: as on the request line, without a fragment.
        headers: names in lower case; of repeated ones the last.
        body: after chunked coding was undone.
    """

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


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


def head(status: int, length: int, content_type: str, headers: Sequence[str], *, keep_alive: bool) -> bytes:
    """Status line and headers.

    Args:
        status: HTTP status.
        length: bytes of the body.
        content_type: of the body.
        headers: further lines.
        keep_alive: another answer may follow on the connection.
    """
    lines = [f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n", *(f"{line}\r\n" for line in headers)]
    if not keep_alive:
        lines.append("Connection: close\r\n")
    return b"".join((_STATUS_LINES[status], _Clock.date(), "".join(lines).encode("latin-1"), b"\r\n"))
