# SPDX-License-Identifier: Apache-2.0
"""A body that is passed on goes as it comes, in both directions."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from helpers.forwarding import GO_ON, SAID, chunk, head, head_of_chunks, in_background
from helpers.wire import Played, Wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_worker.serving.catalog import Elsewhere
from ballast_worker.serving.forwarded import Result
from ballast_worker.serving.http_stream import WINDOW

READ = 256 << 10
"""The most that one read of the event loop brings."""


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_large_body_goes_on_before_it_has_ended(client, played, chunked):
    half = b"x" * (WINDOW * 2)
    client.send(head(None if chunked else 2 * len(half)) + (chunk(half) if chunked else half))
    far = played.accept()
    first, headers = far.head()
    assert first == "POST /v2/models/far/infer HTTP/1.1"
    assert headers["expect"] == "100-continue"
    assert headers["ballast-forwarded"] == "1"
    assert headers.get("content-length") == (None if chunked else str(2 * len(half)))
    far.send(GO_ON)
    got = b""
    while len(got) < len(half):
        got += far.read(int(far.line(), 16) + 2)[:-2] if chunked else far.read(len(half))
    assert got == half
    client.send(chunk(half) + b"0\r\n\r\n" if chunked else half)
    got = far.body(headers) if chunked else far.read(len(half))
    assert got == half
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_small_body_goes_on_whole_with_its_length(client, played, chunked):
    body = b"x" * WINDOW
    client.send(head(None if chunked else len(body)) + (chunk(body) + b"0\r\n\r\n" if chunked else body))
    far = played.accept()
    _, headers = far.head()
    assert headers["content-length"] == str(len(body))
    assert "expect" not in headers
    assert far.body(headers) == body
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize("told", [False, True], ids=["chunks", "length"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_large_answer_comes_back_before_it_has_ended(client, played, told, version):
    half = b"y" * (WINDOW * 2)
    client.send(f"GET /v2/models/far HTTP/{version}\r\n\r\n".encode())
    far = played.accept()
    far.head()
    framing = b"Content-Length: %d" % (2 * len(half)) if told else b"Transfer-Encoding: chunked"
    far.send(b"HTTP/1.1 200 OK\r\nRetry-After: 7\r\n" + framing + b"\r\n\r\n" + (half if told else chunk(half)))
    first, headers = client.head()
    assert first == "HTTP/1.1 200 OK"
    assert headers["retry-after"] == "7"
    plain = told or version == "1.0"
    assert headers.get("transfer-encoding") == (None if plain else "chunked")
    assert headers.get("content-length") == (str(2 * len(half)) if told else None)
    if plain:
        assert client.read(len(half)) == half
    far.send(half if told else chunk(half) + b"0\r\n\r\n")
    assert (client.read(len(half)) if plain else client.body(headers)) == (half if plain else half * 2)
    assert headers.get("connection") == ("close" if version == "1.0" else None)
    if version == "1.0":
        assert client.closed()


def test_head_has_the_length_and_no_body(client, played):
    client.send(b"HEAD /v2/models/far HTTP/1.1\r\n\r\nGET /v2/health/live HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 20) + b"z" * (1 << 20))
    status, headers, _ = client.answer(head_only=True)
    assert (status, headers["content-length"]) == (200, str(1 << 20))
    assert client.answer()[0] == 200


def test_head_does_not_wait_for_a_body_that_nobody_gets(client, played, counted):
    client.send(b"HEAD /v2/models/far HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
    assert client.answer(head_only=True)[0] == 200
    assert far.ended()
    assert counted.get(timeout=10)[0] is Result.ANSWERED


@pytest.fixture(scope="module")
def echo(way) -> Iterator[str]:
    """A worker that answers with the body that it got; with chunks, where it was asked to."""
    played = Played()

    def serve(far: Wire) -> None:
        while True:
            first, headers = far.head()
            if "expect" in headers:
                far.send(GO_ON)
            body = far.body(headers)
            if "in-chunks" in first:
                pieces = [body[:1], body[1:70000], body[70000:]]
                far.send(head_of_chunks() + b"".join(chunk(piece) for piece in pieces if piece) + b"0\r\n\r\n")
            else:
                far.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def accept() -> None:
        while True:
            try:
                far = played.accept()
            except OSError:
                return
            far.socket.settimeout(60)
            in_background(partial(_until_end, serve, far))

    played.listener.settimeout(None)
    in_background(accept)
    way.catalog.table["echo"] = Elsewhere((played.endpoint,))
    yield "/v2/models/echo/infer"
    played.listener.shutdown(socket.SHUT_RDWR)
    played.close()


def _until_end(serve: Callable[[Wire], None], far: Wire) -> None:
    try:
        serve(far)
    except (EOFError, OSError):
        far.close()


sizes = st.integers(1, 3000) | st.sampled_from([1, 2, WINDOW - 1, WINDOW, WINDOW + 1, READ - 1, READ, READ + 1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(sizes, min_size=1, max_size=6), cuts=st.lists(sizes, min_size=1, max_size=6),
       chunked=st.booleans(), answer_chunked=st.booleans())  # fmt: skip
def test_a_body_arrives_as_it_was_sent_wherever_it_is_cut(way, echo, pieces, cuts, chunked, answer_chunked):
    body = np.random.default_rng(sum(pieces)).bytes(sum(pieces))
    bounds = np.cumsum([0, *pieces])
    framed = b"".join(chunk(body[a:b]) for a, b in pairwise(bounds)) + b"0\r\n\r\n"
    path = echo + ("?in-chunks" if answer_chunked else "")
    message = head(None if chunked else len(body), path=path) + (framed if chunked else body)
    with Wire(way.http) as client:

        def send() -> None:
            start = 0
            for number in range(len(message)):
                end = start + cuts[number % len(cuts)]
                client.send(message[start:end])
                start = end
                if start >= len(message):
                    return

        sender = in_background(send)
        status, _, got = client.answer()
        sender.join()
    assert (status, got == body) == (200, True)


def test_answers_keep_the_order_of_requests_around_a_body_that_is_passed_on(way, client, played):
    body = b"x" * (WINDOW * 2)
    small = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0,0,0,0,0,0,0,0]}]}'
    near = head(len(small), path="/v2/models/near/infer") + small
    client.send(near + head(len(body)) + body + near)
    far = played.accept()
    _, headers = far.head()
    far.send(GO_ON)
    assert far.body(headers) == body
    far.send(SAID)
    assert [client.answer()[2][:13] for _ in range(3)] == [b'{"model_name"', b"said", b'{"model_name"']


def test_connections_between_workers_are_used_again(client, played):
    body = b"x" * (WINDOW * 2)
    far = None
    for _ in range(3):
        client.send(head(len(body)) + body)
        far = far or played.accept()
        _, headers = far.head()
        far.send(GO_ON)
        assert far.body(headers) == body
        far.send(SAID)
        assert client.answer()[::2] == (200, b"said")
    played.listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        played.accept()
