# SPDX-License-Identifier: Apache-2.0
"""HTTP as it comes over a socket: pieces, pipelines, bounds, refusals."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from helpers.wire import Wire

from ballast_worker.serving.catalog import Elsewhere, Endpoint

X = np.arange(8, dtype=np.float32).reshape(1, 8)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X[0].tolist()}]}).encode()
LIMIT = 64 << 10


@pytest.fixture(scope="module")
def small(make_server, affine):
    return make_server({"affine": affine}, config={"max_request_bytes": LIMIT})


@pytest.fixture
def wire(small) -> Iterator[Wire]:
    wire = Wire(small.http)
    yield wire
    wire.socket.close()


def post(body: bytes = BODY, *, path: str = "/v2/models/affine/infer", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def check(answer: tuple[int, dict[str, str], bytes], affine) -> None:
    status, _, body = answer
    assert status == 200, body
    np.testing.assert_allclose(json.loads(body)["outputs"][0]["data"], affine.expected(X)[0][0], rtol=1e-5, atol=1e-6)


def error(answer: tuple[int, dict[str, str], bytes], status: int) -> str:
    assert answer[0] == status
    assert answer[1]["content-type"] == "application/json"
    return json.loads(answer[2])["error"]


def test_a_request_may_come_byte_by_byte(wire, affine):
    for byte in post():
        wire.send(bytes([byte]))
    check(wire.answer(), affine)


def test_pipelined_requests_are_answered_in_order_on_one_connection(wire, affine):
    health = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    bad = post(b"{}")
    wire.send((post() + health + bad) * 20)
    for _ in range(20):
        check(wire.answer(), affine)
        assert json.loads(wire.answer()[2]) == {"live": True}
        assert error(wire.answer(), 400) == "input 'x' is missing"


def test_a_chunked_body_is_put_together(wire, affine):
    head = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [BODY[start : start + 7] for start in range(0, len(BODY), 7)]
    wire.send(head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
    check(wire.answer(), affine)


def test_a_client_that_asks_first_is_told_to_go_on(wire, affine):
    request = post(headers="Expect: 100-continue\r\n")
    wire.send(request[: -len(BODY)])
    assert wire.answer()[0] == 100
    wire.send(BODY)
    check(wire.answer(), affine)


def test_head_has_the_headers_of_get_and_no_body(wire):
    wire.send(b"HEAD /v2/models/affine HTTP/1.1\r\nHost: a\r\n\r\nGET /v2/models/affine HTTP/1.1\r\nHost: a\r\n\r\n")
    status, headers, _ = wire.answer(head_only=True)
    again = wire.answer()
    assert (status, headers["content-length"]) == (200, again[1]["content-length"])
    assert int(headers["content-length"]) == len(again[2]) > 0


def test_a_connection_ends_when_the_client_says_so(wire, affine):
    wire.send(post(headers="Connection: close\r\n") + post())
    answer = wire.answer()
    check(answer, affine)
    assert answer[1]["connection"] == "close"
    assert wire.closed()


def test_http_1_0_gets_one_answer(wire):
    wire.send(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert wire.answer()[0] == 200
    assert wire.closed()


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"NONSENSE\r\n\r\n", 400, "the request is not HTTP/1.1"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "the request is not HTTP/1.1"),
        (post(b"x" * (LIMIT + 1)), 413, f"the body has {LIMIT + 1} bytes or more; serving.maxRequestBytes is {LIMIT}"),
        (
            b"POST /v2/models/affine/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"%x\r\n" % (LIMIT + 1)
            + b"x" * (LIMIT + 1),
            413,
            f"serving.maxRequestBytes is {LIMIT}",
        ),
        (b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 40000, 431, "request line and headers exceed 65536 bytes"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 431, "request line and headers exceed 65536 bytes"),
        (b"GET /v2 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 501, "no other protocol is spoken here"),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "only chunked is read"),
        (
            b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
            "only chunked is read",
        ),
    ],
    ids=["nonsense", "length", "large", "large chunks", "headers", "target", "upgrade", "coding", "codings"],
)
def test_what_cannot_be_read_is_answered_and_the_connection_closed(wire, request_bytes, status, words):
    wire.send(request_bytes)
    answer = wire.answer()
    assert words in error(answer, status)
    assert answer[1]["connection"] == "close"
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.closed()


def test_paths_and_methods_that_are_not_there_leave_the_connection_open(wire, affine):
    wire.send(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert "there is nothing at /metrics" in error(wire.answer(), 404)
    wire.send(b"GET /v2/models/affine/infer HTTP/1.1\r\n\r\n")
    answer = wire.answer()
    assert error(answer, 405) == "infer is asked for with POST"
    assert answer[1]["allow"] == "POST"
    wire.send(post(b"", path="/v2/health/live"))
    assert wire.answer()[1]["allow"] == "GET, HEAD"
    wire.send(post())
    check(wire.answer(), affine)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_bodies_are_inflated(wire, affine, coding):
    body = gzip.compress(BODY) if coding == "gzip" else zlib.compress(BODY)
    wire.send(post(body, headers=f"Content-Encoding: {coding}\r\n"))
    check(wire.answer(), affine)


@pytest.mark.parametrize(
    ("coding", "body", "status", "words"),
    [
        ("br", BODY, 415, "content coding br is not read: send gzip, deflate or none"),
        ("gzip", BODY, 400, "the compressed body is damaged"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "cut short"),
        ("gzip", gzip.compress(b" " * (LIMIT + 1)), 413, f"the inflated body exceeds {LIMIT} bytes"),
        ("gzip", gzip.compress(b" " * (LIMIT << 8)), 413, f"the inflated body exceeds {LIMIT} bytes"),
    ],
    ids=["unknown", "damaged", "short", "large", "bomb"],
)
def test_compressed_bodies_that_cannot_be_read_are_refused(wire, affine, coding, body, status, words):
    wire.send(post(body, headers=f"Content-Encoding: {coding}\r\n"))
    assert words in error(wire.answer(), status)
    wire.send(post())
    check(wire.answer(), affine)


def test_a_client_that_never_reads_holds_up_nobody_else(small, wire, affine):
    greedy = Wire(small.http)
    greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    greedy.socket.settimeout(0.2)
    flood = b"GET /v2/models/affine HTTP/1.1\r\nHost: a\r\n\r\n" * 1000
    with suppress(TimeoutError):
        while True:
            greedy.socket.sendall(flood)
    wire.send(post())
    check(wire.answer(), affine)
    greedy.socket.close()


def test_a_client_that_leaves_while_it_waits_harms_nobody(small, wire, affine):
    for _ in range(20):
        gone = Wire(small.http)
        gone.send(post())
        gone.socket.close()
    wire.send(post())
    check(wire.answer(), affine)


def test_a_request_that_never_ends_is_ended_and_a_forwarded_one_that_takes_too_long_is_refused(make_server, affine):
    slow = make_server({"cold": affine}, automatic=False)
    hasty = make_server({}, config={"request_timeout_seconds": 1})
    hasty.catalog.table["cold"] = Elsewhere((Endpoint("127.0.0.1", slow.front.ports.http, slow.front.ports.grpc),))
    endless, forwarded = Wire(hasty.http), Wire(hasty.http)
    endless.send(post()[:-1])
    forwarded.send(post(path="/v2/models/cold/infer"))
    assert error(endless.answer(), 408) == "the request did not arrive in time"
    message = error(forwarded.answer(), 504)
    assert message == "the worker that has model 'cold' did not answer within 1 s"
    endless.socket.close()
    forwarded.socket.close()


@pytest.mark.parametrize("fault", ["find", "submit", "encode"])
def test_a_fault_of_ours_is_answered_and_logged_and_the_connection_serves_on(
    small, wire, affine, fault, monkeypatch, caplog
):
    def fail(*_, **__):
        raise RuntimeError("a fault that nobody foresaw")

    match fault:
        case "find":
            monkeypatch.setattr(small.catalog, "find", fail)
        case "submit":
            monkeypatch.setattr(small.rig.engine, "submit", fail)
        case "encode":
            monkeypatch.setattr("ballast_worker.serving.http_codec.encode", fail)
    wire.send(post())
    assert "its log has the reason" in error(wire.answer(), 500)
    assert "a fault that nobody foresaw" in caplog.text
    monkeypatch.undo()
    wire.send(post())
    check(wire.answer(), affine)
