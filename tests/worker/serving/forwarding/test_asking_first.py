# SPDX-License-Identifier: Apache-2.0
"""Clients and workers that ask for a body before it is sent."""

from __future__ import annotations

import socket

import pytest
from helpers.forwarding import GO_ON, SAID, chunk, head, said_error
from helpers.wire import Wire

from ballast_worker.serving.http_stream import WINDOW


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
