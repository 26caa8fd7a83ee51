# SPDX-License-Identifier: Apache-2.0
"""How long an HTTP connection lives in each of its states. On a clock that the tests move."""

from __future__ import annotations

import asyncio
import types

import pytest
from helpers.wire import Wire

from ballast_contract.config import Serving
from ballast_worker.serving.bodies import Bodies
from ballast_worker.serving.http_connection import HttpConnection
from ballast_worker.serving.http_limits import Limits
from ballast_worker.serving.http_stream import WINDOW, Stream

IDLE, HEAD, REQUEST = 75, 30, 60
LIMITS = Limits(body_bytes=1 << 20, idle_seconds=IDLE, head_seconds=HEAD, request_seconds=REQUEST)
GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v2 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (WINDOW * 3)


class Transport:
    """Keeps what is written; its client takes it when a test says so."""

    def __init__(self) -> None:
        self.written, self.buffered = b"", 0
        self.closed = self.aborted = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces) -> None:
        self.written += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        del high

    def get_extra_info(self, name: str) -> None:
        del name


class Nobody:
    """Takes a body."""

    def write(self, piece: bytes) -> None:
        del piece

    def end(self) -> None:
        pass


class Client:
    """A connection whose requests are answered when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.exchanges = []
        self.timers = []
        self.transport = Transport()
        self.connection = HttpConnection(
            self,
            opened=self.noted,
            closed=self.noted,
            limits=LIMITS,
            bodies=Bodies(1 << 20),
            clock=lambda: self.now,
        )
        self.connection.connection_made(self.transport)

    def noted(self, connection: HttpConnection) -> None:
        del connection

    def wants_whole(self, request) -> bool:
        return request.target != b"/v2"

    def handle(self, exchange) -> None:
        self.exchanges.append(exchange)

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def after(self, seconds: float) -> Transport:
        self.now += seconds
        self.connection.sweep(self.now)
        return self.transport


@pytest.fixture
async def client(monkeypatch):
    client = Client()
    loop = types.SimpleNamespace(call_later=lambda _, work: client.timers.append(work))
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return client


async def test_a_connection_that_never_sends_a_request_is_closed(client):
    assert not client.after(IDLE).closed
    assert client.after(1).closed
    assert client.transport.written == b""


async def test_line_ends_before_a_request_keep_no_connection_open(client):
    for _ in range(IDLE):
        client.send(b"\r\n")
        assert not client.after(1).closed
    assert client.after(1).closed


async def test_a_connection_is_idle_from_its_last_answer(client):
    client.after(5)
    client.send(GET)
    client.exchanges[0].respond(200, [b"{}"])
    assert not client.after(IDLE).closed
    assert client.after(1).closed


async def test_a_connection_with_a_request_under_way_is_not_idle(client):
    client.send(GET)
    assert not client.after(5).closed
    body = Stream(2, regulate=lambda: None)
    client.exchanges[0].relay(200, body, content_type="text/plain")
    for _ in range(2):
        assert not client.after(REQUEST).closed
        body.feed(b"x")
    body.end()
    assert not client.after(IDLE).closed, "it has just been answered"
    assert client.after(1).closed


@pytest.mark.parametrize("start", [b"G", b"GET /v2 HTTP/1.1\r\n", b"GET /v2 HTTP/1.1\r\nHost: a\r\nB:"])
async def test_headers_that_do_not_end_are_answered_and_the_connection_closed(client, start):
    client.send(start)
    assert not client.after(HEAD).written
    assert b" 408 " in client.after(1).written
    client.send(b"and so on")
    assert client.transport.written.count(b"HTTP/1.1") == 1


async def test_headers_that_come_one_after_the_other_have_the_same_time(client):
    client.send(b"GET /v2 HTTP/1.1\r\n")
    for _ in range(HEAD):
        client.send(b"A: b\r\n")
        assert not client.after(1).written
    assert b" 408 " in client.after(1).written


@pytest.mark.parametrize("path", [b"/v2", b"/v2/models/a/infer"], ids=["passed on", "whole"])
async def test_a_body_that_does_not_end_is_answered_and_the_connection_closed(client, path):
    client.send(POST.replace(b"/v2", path) + b"x")
    assert not client.after(REQUEST).written
    assert b" 408 " in client.after(1).written
    assert b"did not arrive in time" in client.transport.written


async def test_a_body_that_is_not_taken_has_time_until_it_is(client):
    client.send(POST + b"x" * WINDOW)
    assert client.transport.paused
    assert not client.after(10 * REQUEST).written
    client.exchanges[0].stream.discard()
    assert not client.transport.paused
    assert not client.after(REQUEST).written
    assert b" 408 " in client.after(1).written


async def test_a_refused_body_that_does_not_end_is_said_nothing_more(client):
    client.send(POST)
    client.exchanges[0].respond(404, [b"{}"])
    said = client.transport.written
    client.after(REQUEST + 1)
    client.send(GET)
    assert client.transport.written == said
    assert len(client.exchanges) == 1


@pytest.mark.parametrize("request_line", [POST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
                                          POST.replace(b"/1.1", b"/1.0")], ids=["close", "1.0"])  # fmt: skip
async def test_a_refused_body_of_a_last_request_is_read_to_its_end_before_the_connection_closes(client, request_line):
    client.send(request_line + b"x" * WINDOW)
    client.exchanges[0].respond(404, [b"{}"])
    assert b" 404 " in client.transport.written
    client.send(b"x" * WINDOW)
    assert not client.after(REQUEST).closed
    assert not client.timers
    client.send(b"x" * WINDOW)
    assert client.transport.closed
    assert not client.transport.aborted


async def test_a_body_that_the_client_holds_back_has_its_time_from_when_it_is_wanted(client):
    client.send(POST[:-2] + b"Expect: 100-continue\r\n\r\n")
    assert not client.after(10 * REQUEST).written
    client.exchanges[0].stream.take(Nobody())
    assert client.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert b" 408 " not in client.after(REQUEST).written
    assert b" 408 " in client.after(1).written


async def test_an_old_client_is_not_told_to_go_on(client):
    client.send(POST.replace(b"/1.1\r\n", b"/1.0\r\nExpect: 100-continue\r\n") + b"x")
    client.exchanges[0].stream.take(Nobody())
    assert client.transport.written == b""


async def test_answers_before_a_refusal_have_their_time(client):
    client.send(GET + b"nonsense\r\n\r\n")
    assert not client.timers
    client.exchanges[0].respond(200, [b"{}"])
    assert client.transport.written.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in client.transport.written
    assert not client.transport.closed
    client.timers.pop()()
    assert client.transport.closed


async def test_a_connection_that_finishes_closes_when_the_answer_that_comes_back_has_ended(client):
    client.send(GET)
    body = Stream(2, regulate=lambda: None)
    client.exchanges[0].relay(200, body, content_type="text/plain")
    client.connection.finish()
    body.feed(b"xx")
    assert not client.transport.closed
    body.end()
    assert client.transport.closed


async def test_a_connection_that_finishes_closes_after_a_request_that_is_being_read_was_answered(client):
    client.send(GET)
    body = Stream(1, regulate=lambda: None)
    client.exchanges[0].relay(200, body, content_type="text/plain")
    client.send(GET[:5])
    client.connection.finish()
    body.feed(b"x")
    body.end()
    assert not client.transport.closed
    client.send(GET[5:])
    client.exchanges[1].respond(200, [b"{}"])
    assert client.transport.written.endswith(b"Connection: close\r\n\r\n{}")
    assert client.transport.closed


@pytest.mark.parametrize("end", ["finish", "retire"])
async def test_an_answer_before_its_body_has_come_says_when_it_is_the_last(client, end):
    client.send(POST + b"x" * WINDOW)
    getattr(client.connection, end)()
    client.exchanges[0].respond(404, [b"{}"])
    assert b"Connection: close" in client.transport.written
    client.send(b"x" * WINDOW * 2)
    assert client.transport.closed


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(client):
    client.send(GET)
    client.transport.buffered = 1 << 20
    client.exchanges[0].respond(200, [b"x" * (1 << 20)])
    for left in range(5, 0, -1):
        client.transport.buffered = left << 17
        assert not client.after(REQUEST).closed, "a slow client takes a little"
    assert not client.after(REQUEST).closed
    assert client.after(1).aborted


async def test_an_answer_that_does_not_come_to_its_end_is_cut_off(client):
    client.send(GET)
    body = Stream(None, regulate=lambda: None)
    client.exchanges[0].relay(200, body, content_type="text/plain")
    client.after(0)
    for _ in range(3):
        body.feed(b"x")
        assert not client.after(REQUEST).closed
    assert not client.after(1).closed
    assert client.after(REQUEST).aborted


@pytest.mark.parametrize("rest", [b"A: ", b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: "], ids=["header", "trailer"])
async def test_a_header_without_an_end_is_refused_before_it_fills_the_memory(client, rest):
    client.send(b"POST /v2/models/a/infer HTTP/1.1\r\n" + rest)
    for _ in range(9):
        client.send(b"a" * (8 << 10))
    assert b" 431 " in client.transport.written


def test_the_limits_are_those_of_the_configuration():
    assert Limits.of(Serving()) == Limits(512 << 20, 75, 30, 60)
    assert Limits.of(Serving(request_timeout_seconds=5)).head_seconds == 5


def test_a_server_ends_connections_that_say_nothing(make_server, affine):
    server = make_server({"affine": affine}, config={"request_timeout_seconds": 1, "idle_timeout_seconds": 1})
    with Wire(server.http) as silent, Wire(server.http) as slow:
        slow.send(b"GET /v2 HTTP/1.1\r\nHost:")
        assert silent.closed()
        assert slow.answer()[0] == 408
        slow.socket.shutdown(1)
        assert slow.closed()
