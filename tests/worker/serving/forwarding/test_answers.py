# SPDX-License-Identifier: Apache-2.0
"""What other workers say, or do not say to its end, and what the client gets of it."""

from __future__ import annotations

import contextlib

import pytest
from helpers.forwarding import GO_ON, SAID, chunk, head, head_of_chunks, said_error
from helpers.wire import Played, Wire

from ballast_worker.serving.catalog import Elsewhere
from ballast_worker.serving.forwarded import Result
from ballast_worker.serving.http_stream import WINDOW


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
