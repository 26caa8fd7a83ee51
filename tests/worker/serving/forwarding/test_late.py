# SPDX-License-Identifier: Apache-2.0
"""When the other worker or the client takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings

import pytest
from helpers.forwarding import GO_ON, SAID, head, in_background, said_error
from helpers.wire import Wire

from ballast_worker.serving.bodies import Bodies, Share
from ballast_worker.serving.catalog import Elsewhere, Endpoint
from ballast_worker.serving.forward_http import HttpForwarder
from ballast_worker.serving.forwarded import Result
from ballast_worker.serving.http_message import HttpRequest
from ballast_worker.serving.http_stream import WINDOW, Stream


@pytest.mark.parametrize("missing", [0, 1], ids=["answer", "end of the body"])
def test_what_does_not_come_in_time_is_said(hasty, played, missing):
    hasty.catalog.table["far"] = Elsewhere((played.endpoint,))
    body = b"x" * (WINDOW * 3)
    with Wire(hasty.http) as client:
        client.send(head(len(body)) + body[missing:])
        far = played.accept()
        far.head()
        far.send(GO_ON)
        far.read(len(body) - missing)
        answer = client.answer()
        if missing:
            assert said_error(answer, 408) == "the request did not arrive in time"
        else:
            assert said_error(answer, 504) == "the worker that has model 'far' did not answer within 1 s"
        assert far.ended()


@pytest.mark.parametrize("headers", ["", "Expect: 100-continue\r\n"], ids=["sends at once", "asks first"])
def test_a_worker_that_does_not_say_whether_it_wants_a_body_is_late(hasty, played, counted, headers):
    hasty.catalog.table["far"] = Elsewhere((played.endpoint,))
    with Wire(hasty.http) as client:
        client.send(head(WINDOW * 3, headers=headers) + (b"" if headers else b"x" * (WINDOW * 3)))
        played.accept().head()
        assert "did not answer within 1 s" in said_error(client.answer(), 504)
    assert counted.get(timeout=10)[0] is Result.LATE


def test_a_worker_that_does_not_take_the_body_that_it_wanted_is_late(hasty, played, counted):
    hasty.catalog.table["far"] = Elsewhere((played.endpoint,))
    size = 128 << 20
    with Wire(hasty.http) as client:

        def send() -> None:
            with contextlib.suppress(OSError):
                client.send(bytes(size))

        client.send(head(size))
        sender = in_background(send)
        far = played.accept()
        far.head()
        far.send(GO_ON)
        assert "did not answer within 1 s" in said_error(client.answer(), 504)
        client.socket.shutdown(socket.SHUT_RDWR)
        sender.join()
    assert counted.get(timeout=10)[0] is Result.LATE


def test_a_worker_that_goes_silent_in_its_answer_is_late(hasty, played, counted):
    hasty.catalog.table["far"] = Elsewhere((played.endpoint,))
    with Wire(hasty.http) as client:
        client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\n")
        far = played.accept()
        far.head()
        far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
        client.head()
        assert client.read(1) == b"x"
        assert client.closed()
        assert far.ended()
    assert counted.get(timeout=10) == (Result.LATE, 0, 1)


def test_a_call_that_is_given_up_before_it_begins_leaves_nothing_behind(way, client):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.send(head(None) + b"no chunk\r\n")
        assert client.answer()[0] == 400
        client.close()
        with Wire(way.http) as other:
            other.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
            assert other.answer()[0] == 200
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_a_body_has_its_time_from_when_it_is_wanted_and_the_answer_from_when_all_was_sent(monkeypatch):
    loop = asyncio.get_running_loop()
    later, time = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + later[0])

    async def pass_most_of_the_time() -> None:
        later[0] += 90
        for _ in range(3):  # the timers run, and what they end
            await asyncio.sleep(0)

    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forwarder = HttpForwarder(timeout_seconds=100)
    stream = Stream(2, regulate=lambda: None)
    request = HttpRequest(b"POST", b"/v2/models/far/infer", {}, b"", Share(Bodies(0)))
    answer = loop.create_task(forwarder.forward([Endpoint("127.0.0.1", port, port)], request, stream))
    reader, writer = await accepted.get()
    await reader.readuntil(b"\r\n\r\n")
    await pass_most_of_the_time()
    writer.write(GO_ON)
    for _ in range(2):
        stream.feed(b"x")
        await reader.readexactly(1)
    await pass_most_of_the_time()
    stream.end()
    await pass_most_of_the_time()
    writer.write(SAID)
    found = await answer
    assert found is not None
    assert found.status == 200
    forwarder.close()
    writer.close()
    server.close()
