# SPDX-License-Identifier: Apache-2.0
"""A body that is passed on goes as it comes, in both directions, within a bound of memory."""

from __future__ import annotations

import contextlib
import gc
import json
import queue
import socket
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from helpers.wire import Played, Wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Endpoint
from ballast_worker.serving.forwarded import Forwarded, Result
from ballast_worker.serving.http_stream import WINDOW

READ = 256 << 10
"""The most that one read of the event loop brings."""

X = np.arange(8, dtype=np.float32).reshape(1, 8)
LIMIT = 256 << 20
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
SAID = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nsaid"


@pytest.fixture(scope="module")
def way(make_server, affine):
    """The worker that is asked, for models that it does not have."""
    return make_server({"near": affine}, config={"max_request_bytes": LIMIT, "request_timeout_seconds": 20})


@pytest.fixture
def played() -> Iterator[Played]:
    """The worker that has `far`."""
    played = Played()
    yield played
    played.close()


@pytest.fixture
def second() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


@pytest.fixture(scope="module")
def hasty(make_server, affine):
    """A worker with little patience."""
    return make_server({"near": affine}, config={"request_timeout_seconds": 1})


Counted = queue.Queue[tuple[Result, int, int]]


@pytest.fixture
def counted(way, hasty, monkeypatch) -> Counted:
    """What is counted: the result, and the bytes of the two bodies."""
    found: Counted = queue.Queue()
    for forwarded in (way.front.forwarded, hasty.front.forwarded):

        def count(protocol: str, result: Result, *, request: int, answer: int, forwarded=forwarded) -> None:
            Forwarded.count(forwarded, protocol, result, request=request, answer=answer)
            found.put((result, request, answer))

        monkeypatch.setattr(forwarded, "count", count)
    return found


@pytest.fixture
def client(way, played) -> Iterator[Wire]:
    way.catalog.table["far"] = Elsewhere((played.endpoint,))
    with Wire(way.http) as client:
        yield client


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


# How a body goes on


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


def head_of_chunks() -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


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


# The bound


def test_a_body_far_larger_than_the_bound_takes_no_more_memory_than_the_bound(way, client, played):
    piece, count = b"x" * (1 << 20), 128
    into = bytearray(1 << 20)
    client.send(head(count * len(piece)) + piece)
    far = played.accept()
    far.head()
    far.send(GO_ON)
    far.read(len(piece))
    tracemalloc.start()
    try:

        def send() -> None:
            for _ in range(count - 1):
                client.send(piece)

        sender = in_background(send)
        left = (count - 1) * len(piece)
        while left:
            left -= far.socket.recv_into(into, min(left, len(into)))
        sender.join()
        far.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * len(piece)))

        def answer() -> None:
            for _ in range(count):
                far.send(piece)

        sender = in_background(answer)
        client.head()
        left = count * len(piece) - len(client.buffer)
        while left:
            left -= client.socket.recv_into(into, min(left, len(into)))
        sender.join()
        assert tracemalloc.get_traced_memory()[1] < 2 * (WINDOW + READ) + (1 << 20)
    finally:
        tracemalloc.stop()


def stalls_after(sender: socket.socket, piece: bytes, most: int) -> int:
    """Bytes that can be sent to somebody who does not go on reading."""
    sender.settimeout(0.5)
    sent = 0
    try:
        while sent < most:
            sent += sender.send(piece)
    except TimeoutError:
        pass
    sender.settimeout(10)
    return sent


def test_a_client_sends_no_faster_than_the_other_worker_reads(client, played):
    piece, size = b"x" * (1 << 20), 128 << 20
    client.send(head(size))
    far = played.accept()
    far.head()
    assert stalls_after(client.socket, piece, size) < size / 2, "nothing is wanted yet"
    far.send(GO_ON)
    assert stalls_after(client.socket, piece, size) < size / 2, "nothing is read"
    client.close()
    assert far.ended()


def test_the_other_worker_answers_no_faster_than_the_client_reads(client, played):
    piece, size = b"x" * (1 << 20), 128 << 20
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    sent = stalls_after(far.socket, piece, size)
    assert sent < size / 2
    sender = in_background(lambda: far.send(bytes(size - sent)))
    status, _, body = client.answer()
    sender.join()
    assert (status, len(body)) == (200, size)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_the_limit_of_a_body_holds(make_server, affine, played, chunked):
    way = make_server({"near": affine}, config={"max_request_bytes": WINDOW * 2})
    way.catalog.table["far"] = Elsewhere((played.endpoint,))
    with Wire(way.http) as client:
        client.send(head(None if chunked else WINDOW * 2 + 1))
        if chunked:
            client.send(chunk(b"x" * (WINDOW + 1)))
            far = played.accept()
            far.head()
            far.send(GO_ON)
            assert far.read(5) == b"10001"
            client.send(chunk(b"x" * WINDOW))
        assert f"serving.maxRequestBytes is {WINDOW * 2}" in said_error(client.answer(), 413)
        assert not chunked or far.ended()


# When the other worker or the client goes


def test_what_was_not_wanted_by_one_worker_goes_to_the_next(way, client, played, second):
    way.catalog.table["far"] = Elsewhere((played.endpoint, second.endpoint))
    body = b"x" * (WINDOW * 3)
    client.send(head(len(body)) + body)
    far = played.accept()
    far.head()
    far.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngone")
    far = second.accept()
    _, headers = far.head()
    far.send(GO_ON)
    assert far.body(headers) == body
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize("large", [False, True])
def test_a_request_of_which_nothing_was_taken_is_sent_again_when_the_worker_ends(way, client, played, second, large):
    way.catalog.table["far"] = Elsewhere((played.endpoint, second.endpoint))
    body = b"x" * (WINDOW * 3 if large else 3)
    client.send(head(len(body)) + body)
    far = played.accept()
    far.head()
    far.close()
    far = second.accept()
    _, headers = far.head()
    if large:
        far.send(GO_ON)
    assert far.body(headers) == body
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize("told", ["nothing", "404"])
def test_a_body_of_which_a_part_is_gone_is_refused_and_the_connection_serves_on(way, client, played, second, told):
    way.catalog.table["far"] = Elsewhere((played.endpoint, second.endpoint))
    body = b"x" * (WINDOW * 3)
    client.send(head(len(body)) + body[:-1])
    far = played.accept()
    far.head()
    far.send(GO_ON)
    far.read(len(body) - 1)
    if told == "404":
        far.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngone")
    far.close()
    answer = client.answer()
    assert "send it again" in said_error(answer, 503)
    assert answer[1]["retry-after"] == "1"
    client.send(body[-1:] + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert client.answer()[0] == 200


def test_an_answer_that_breaks_off_ends_the_connection_before_its_length(client, played):
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
    client.head()
    assert client.read(1) == b"x"
    far.close()
    assert client.closed()


def test_an_answer_without_a_length_that_breaks_off_does_not_look_complete(client, played):
    client.send(b"GET /v2/models/far HTTP/1.0\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(head_of_chunks() + chunk(b"x"))
    client.head()
    assert client.read(1) == b"x"
    far.close()
    with pytest.raises(ConnectionResetError):
        client.read(1)


def test_an_answer_that_breaks_off_before_its_turn_is_an_error(way, client, played, second, counted):
    way.catalog.table["other"] = Elsewhere((second.endpoint,))
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\nGET /v2/models/other HTTP/1.1\r\n\r\n")
    far, other = played.accept(), second.accept()
    far.head()
    other.head()
    other.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
    other.close()
    assert counted.get(timeout=10)[0] is Result.LOST
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")
    assert "send it again" in said_error(client.answer(), 503)


@pytest.mark.parametrize("when", ["before the body is wanted", "in the body", "before the answer", "in the answer"])
def test_a_client_that_leaves_takes_its_call_along(client, played, counted, when):
    body = b"x" * (WINDOW * 3)
    client.send(head(len(body)) + body[: WINDOW // 2])
    far = played.accept()
    far.head()
    if when != "before the body is wanted":
        far.send(GO_ON)
        far.read(WINDOW // 2)
    if when in ("before the answer", "in the answer"):
        client.send(body[WINDOW // 2 :])
        far.read(len(body) - WINDOW // 2)
    if when == "in the answer":
        far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
        client.head()
    client.close()
    assert far.ended()
    sent = len(body) if when in ("before the answer", "in the answer") else WINDOW // 2
    assert counted.get(timeout=10) == (Result.LEFT, sent, 1 if when == "in the answer" else 0)


def test_a_small_request_is_given_up_when_its_client_leaves(client, played):
    client.send(head(2) + b"{}")
    far = played.accept()
    far.head()
    client.close()
    assert far.ended()


def test_an_answer_that_comes_before_the_body_has_ended_is_passed_back(client, played):
    body = b"x" * (WINDOW * 3)
    client.send(head(len(body)) + body[:-1])
    far = played.accept()
    far.head()
    far.send(GO_ON)
    far.read(WINDOW)
    far.send(b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong")
    assert client.answer()[::2] == (413, b"long")
    assert far.ended()
    client.send(body[-1:] + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert client.answer()[0] == 200


def test_an_answer_right_behind_the_wish_for_the_body_is_passed_back(client, played):
    body = b"x" * (WINDOW * 3)
    client.send(head(len(body)) + body[:-1])
    far = played.accept()
    far.head()
    far.send(GO_ON + SAID)
    assert client.answer()[::2] == (200, b"said")
    assert far.ended()
    client.send(body[-1:] + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert client.answer()[0] == 200


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


def test_a_worker_that_answers_what_nobody_asked_or_no_http_is_not_asked_again(client, played):
    for nonsense in (b"nonsense\r\n\r\n", SAID + SAID, b"HTTP/1.1 200 OK\r\nA: " + b"a" * (1 << 20)):
        client.send(head(2) + b"{}")
        far = played.accept()
        far.head()
        with contextlib.suppress(ConnectionError):
            far.send(nonsense)
        assert client.answer()[0] in (200, 503)
        assert far.ended()


def get(client: Wire, played: Played, *pieces: bytes) -> Wire:
    """Ask for a model of the other worker, which says something."""
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(b"".join(pieces))
    return far


@pytest.mark.parametrize("rest", [b"", b"Content-Length: 7\r\n"], ids=["no length", "length"])
@pytest.mark.parametrize("status", [204, 304])
def test_a_status_that_has_no_body_is_passed_back_without_one(client, played, status, rest):
    get(client, played, b"HTTP/1.1 %d Nothing\r\n%b\r\n" % (status, rest))
    found, headers, _ = client.answer()
    assert (found, headers["content-length"], "transfer-encoding" in headers) == (status, "0", False)
    client.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert client.answer()[0] == 200


def test_headers_behind_a_body_are_none_of_the_answer(way, client, played, second):
    way.catalog.table["other"] = Elsewhere((second.endpoint,))
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\nGET /v2/models/other HTTP/1.1\r\n\r\n")
    far, other = played.accept(), second.accept()
    far.head()
    other.head()
    trailer = b"0\r\nContent-Type: text/other\r\nRetry-After: 9\r\n\r\n"
    other.send(head_of_chunks()[:-2] + b"Content-Type: text/plain\r\n\r\n" + chunk(b"x") + trailer)
    far.send(SAID)
    client.answer()
    _, headers, body = client.answer()
    assert (headers["content-type"], "retry-after" in headers, body) == ("text/plain", False, b"x")


@pytest.mark.parametrize(
    ("late", "together"),
    [(b"H", False), (b"H", True), (b"HTTP/1.1 200 OK\r\nContent-Le", False), (SAID, True), (b"\r\n", False)],
)
def test_what_a_worker_says_unasked_ends_the_connection(client, played, late, together):
    far = get(client, played, SAID, late if together else b"")
    assert client.answer()[::2] == (200, b"said")
    if not together:
        far.send(late)
    assert far.ended()
    get(client, played, SAID)
    assert client.answer()[::2] == (200, b"said")


def test_only_100_says_that_a_body_is_wanted(client, played):
    body = b"x" * (WINDOW * 2)
    client.send(head(len(body), headers="Expect: 100-continue\r\n"))
    far = played.accept()
    _, headers = far.head()
    far.send(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.head()
    client.socket.settimeout(10)
    far.send(GO_ON)
    assert client.head()[0] == "HTTP/1.1 100 Continue"
    client.send(body)
    assert far.body(headers) == body
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nfoo",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ],
    ids=["another protocol", "another coding"],
)
def test_an_answer_that_cannot_be_passed_back_is_none(client, played, answer, caplog):
    far = get(client, played, answer)
    assert client.answer()[0] == 503
    assert far.ended()
    assert not caplog.records


def test_a_status_without_a_name_is_passed_back(client, played):
    client.send(b"GET /v2/models/far HTTP/1.1\r\n\r\n")
    far = played.accept()
    far.head()
    far.send(SAID.replace(b"200 OK", b"299 Unheard of"))
    assert client.answer()[::2] == (299, b"said")


def test_a_fault_of_ours_before_a_large_body_is_answered(way, client, monkeypatch, caplog):
    def fail(name: str) -> None:
        raise RuntimeError("a fault that nobody foresaw")

    body = b"x" * (WINDOW * 2)
    monkeypatch.setattr(way.catalog, "find", fail)
    client.send(head(len(body)) + body)
    assert "its log has the reason" in said_error(client.answer(), 500)
    assert "a fault that nobody foresaw" in caplog.text


# 100 Continue


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_client_that_asks_first_is_told_to_go_on_when_the_other_worker_says_so(client, played, chunked):
    body = b"x" * (WINDOW * 2)
    client.send(head(None if chunked else len(body), headers="Expect: 100-continue\r\n"))
    if not chunked:
        far = played.accept()
        _, headers = far.head()
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.head()
        client.socket.settimeout(10)
        far.send(GO_ON)
    assert client.head()[0] == "HTTP/1.1 100 Continue"
    client.send(chunk(body) + b"0\r\n\r\n" if chunked else body)
    if chunked:
        far = played.accept()
        _, headers = far.head()
        far.send(GO_ON)
    assert far.body(headers) == body
    far.send(SAID)
    assert client.answer()[::2] == (200, b"said")


@pytest.mark.parametrize("path", ["/v2/models/nobody/infer", "/v2/models/near", "/elsewhere"])
def test_a_client_that_asks_first_is_refused_without_sending_its_body(way, path):
    with Wire(way.http) as client:
        client.send(head(WINDOW * 2, headers="Expect: 100-continue\r\n", path=path))
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (405 if path.endswith("near") else 404, "close")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.closed()


def test_a_refused_body_is_read_and_forgotten_and_the_connection_serves_on(way):
    body = b"x" * (8 << 20)
    with Wire(way.http) as client:
        for _ in range(2):
            client.send(head(len(body), path="/v2/models/nobody/infer") + body)
            assert "no model 'nobody'" in said_error(client.answer(), 404)


# Order and connections


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


# Between two real workers


def padded(nbytes: int, **fields: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X[0].tolist()}
    return json.dumps({"inputs": [tensor], **fields}).encode().ljust(nbytes)


@pytest.fixture(scope="module")
def pair(make_server, affine, way):
    """A worker that has `pair`, behind the one that is asked."""
    holder = make_server({"pair": affine})
    way.catalog.table["pair"] = Elsewhere((Endpoint("127.0.0.1", holder.front.ports.http, holder.front.ports.grpc),))
    return holder


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_large_call_between_two_workers_is_answered(way, pair, affine, chunked):
    body = padded(3 << 20, id="i" * (1 << 20))
    with Wire(way.http) as client:
        for _ in range(3):
            pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
            framed = b"".join(map(chunk, pieces)) + b"0\r\n\r\n" if chunked else body
            client.send(head(None if chunked else len(body), path="/v2/models/pair/infer") + framed)
            status, _, answer = client.answer()
            assert status == 200, answer[:1000]
            found = json.loads(answer)
            assert found["id"] == "i" * (1 << 20)
            np.testing.assert_allclose(found["outputs"][0]["data"], affine.expected(X)[0][0], rtol=1e-5, atol=1e-6)


def test_a_worker_that_lost_the_model_does_not_want_the_body(way, pair):
    body = padded(1 << 20)
    way.catalog.table["moved away"] = way.catalog.table["pair"]
    with Wire(way.http) as client:
        for _ in range(2):
            client.send(head(len(body), path="/v2/models/moved%20away/infer") + body)
            assert "on its way" in said_error(client.answer(), 503)


def test_a_large_call_that_waits_for_its_model_is_executed_where_the_model_arrives(make_server, affine, monkeypatch):
    patient = make_server({"here": affine}, patience_seconds=30.0)
    patient.catalog.table["here"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    looks = threading.Semaphore(0)
    find = patient.catalog.find
    monkeypatch.setattr(patient.catalog, "find", lambda name: (looks.release(), find(name))[1])
    body = padded(8 << 20)
    with Wire(patient.http) as client:
        sender = in_background(lambda: client.send(head(len(body), path="/v2/models/here/infer") + body))
        for _ in range(4):
            assert looks.acquire(timeout=30)
        del patient.catalog.table["here"]
        status, _, answer = client.answer()
        sender.join()
    assert status == 200, answer


def test_what_was_passed_on_is_counted(way, pair, counted):
    body = padded(1 << 20)
    counters = way.front.forwarded
    requests, nbytes = dict(counters.requests), dict(counters.nbytes)
    with Wire(way.http) as client:
        for message in (head(len(body), path="/v2/models/pair/infer") + body, b"GET /v2/models/pair HTTP/1.1\r\n\r\n"):
            client.send(message)
            answer = client.answer()
            assert answer[0] == 200
    assert [counted.get(timeout=10)[0] for _ in range(2)] == [Result.ANSWERED] * 2
    assert counters.requests["http", "answered"] == requests["http", "answered"] + 2
    assert counters.nbytes["http", "request"] == nbytes["http", "request"] + len(body)
    assert counters.nbytes["http", "answer"] > nbytes["http", "answer"] + len(answer[2])
