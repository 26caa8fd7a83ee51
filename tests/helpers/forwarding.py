# SPDX-License-Identifier: Apache-2.0
"""What clients and workers say to each other when a body is passed on."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable

from ballast_worker.serving.forwarded import Result

GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
SAID = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nsaid"


Counted = queue.Queue[tuple[Result, int, int]]


def head(length: int | None, *, headers: str = "", path: str = "/v2/models/far/infer") -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n{headers}\r\n".encode()


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def said_error(answer: tuple[int, dict[str, str], bytes], status: int) -> str:
    assert answer[0] == status, answer
    return json.loads(answer[2])["error"]


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def head_of_chunks() -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
