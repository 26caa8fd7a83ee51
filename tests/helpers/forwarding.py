# SPDX-License-Identifier: Apache-2.0
"""What clients and workers say to each other when a body is passed on."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from ballast_worker.serving.forwarded import Result

GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
SAID = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nsaid"


Counted = queue.Queue[tuple[Result, int, int]]


class Silent(grpc.GenericRpcHandler):
    """A worker that takes calls over gRPC and answers none.

    Attributes:
        port: where it listens.
        asked: the messages that came.
        left: set when a call has ended.
    """

    def __init__(self) -> None:
        self.asked: queue.Queue[bytes] = queue.Queue()
        self.left = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(1), handlers=(self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.left.set)
        self.asked.put(message)
        assert self.left.wait(60)
        return b""

    def close(self) -> None:
        self._server.stop(None).wait()


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
