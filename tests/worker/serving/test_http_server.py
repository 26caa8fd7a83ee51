# SPDX-License-Identifier: Apache-2.0
"""The HTTP server's looks at its connections, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ballast_worker.serving.bodies import Bodies
from ballast_worker.serving.http_limits import Limits
from ballast_worker.serving.http_server import HttpServer

IDLE, HEAD = 75, 30
LIMITS = Limits(body_bytes=1, idle_seconds=IDLE, head_seconds=HEAD, request_seconds=0.01)
"""The last is also the time between two looks."""


class Handler:
    """Answers at once."""

    def wants_whole(self, request) -> bool:
        del request
        return True

    def handle(self, exchange) -> None:
        exchange.respond(200, [b"{}"])

    def close(self) -> None:
        pass


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def server(clock):
    server = HttpServer(Handler(), limits=LIMITS, bodies=Bodies(1 << 20), clock=clock)
    yield server
    await server.stop(0)


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0))


async def test_a_client_that_is_slow_while_the_server_stops_has_its_time_as_before(server, clock):
    reader, writer = await connect(server)
    writer.write(b"GET /v2 HTTP/1.1\r\n\r\nGET /v2")
    await reader.readuntil(b"{}")
    stopped = asyncio.create_task(server.stop(3600))
    await asyncio.sleep(0)
    clock.now += HEAD + 1
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await asyncio.wait_for(stopped, 10)


async def test_a_connection_that_was_never_made_keeps_no_other_from_being_looked_at(server, clock):
    reader, writer = await connect(server)
    server._connect()
    writer.write(b"GET /v2 HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"{}")
    clock.now += IDLE + 1
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_connection_that_is_made_while_the_server_stops_is_closed(server):
    reader, writer = await connect(server)
    writer.write(b"GET /v2 HTTP/1.1\r\n\r\nG")
    await reader.readuntil(b"{}")
    stopped = asyncio.create_task(server.stop(3600))
    await asyncio.sleep(0)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(server._connect, sock=ours)
    late, late_writer = await asyncio.open_connection(sock=theirs)
    assert await asyncio.wait_for(late.read(), 10) == b""
    late_writer.close()
    writer.close()
    await asyncio.wait_for(stopped, 10)
