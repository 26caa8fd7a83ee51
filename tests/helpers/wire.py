# SPDX-License-Identifier: Apache-2.0
"""HTTP by hand: a client that writes bytes and reads answers one by one, and a worker that a test plays."""

from __future__ import annotations

import contextlib
import socket
from typing import Self

from ballast_worker.serving.catalog import Endpoint

Head = tuple[str, dict[str, str]]


class Wire:
    """One end of a connection."""

    def __init__(self, where: str | socket.socket) -> None:
        if isinstance(where, str):
            host, port = where.split(":")
            where = socket.create_connection((host, int(port)), timeout=10)
        self.socket = where
        self.buffer = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _until(self, condition) -> None:
        while not condition():
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError
            self.buffer += piece

    def before(self, separator: bytes) -> bytes:
        self._until(lambda: separator in self.buffer)
        return self.read(self.buffer.index(separator) + len(separator))[: -len(separator)]

    def line(self) -> bytes:
        return self.before(b"\r\n")

    def read(self, nbytes: int) -> bytes:
        self._until(lambda: len(self.buffer) >= nbytes)
        found = bytes(self.buffer[:nbytes])
        del self.buffer[:nbytes]
        return found

    def head(self) -> Head:
        """The first line and the headers of a message, names in lower case."""
        first, *lines = self.before(b"\r\n\r\n").decode().split("\r\n")
        return first, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    def body(self, headers: dict[str, str]) -> bytes:
        """The body that belongs to the headers of a message."""
        if headers.get("transfer-encoding") != "chunked":
            return self.read(int(headers.get("content-length", 0)))
        found = bytearray()
        while length := int(self.line(), 16):
            found += self.read(length)
            assert self.line() == b""
        assert self.line() == b""
        return bytes(found)

    def answer(self, *, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        first, headers = self.head()
        return int(first.split()[1]), headers, b"" if head_only else self.body(headers)

    def closed(self) -> bool:
        """The other end has closed, and said nothing more."""
        try:
            self._until(lambda: False)
        except (EOFError, ConnectionError):
            return self.buffer == b""
        return False

    def ended(self) -> bool:
        """The other end has closed, whatever it said before."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Played:
    """A worker that a test plays: it accepts connections and says what the test says."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.port = self.listener.getsockname()[1]
        self.endpoint = Endpoint("127.0.0.1", self.port, self.port)
        self.accepted: list[Wire] = []

    def accept(self) -> Wire:
        connected, _ = self.listener.accept()
        connected.settimeout(10)
        self.accepted.append(Wire(connected))
        return self.accepted[-1]

    def close(self) -> None:
        self.listener.close()
        for wire in self.accepted:
            wire.close()
