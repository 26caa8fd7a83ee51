# SPDX-License-Identifier: Apache-2.0
"""What is passed on takes no more memory than the bound, and goes no faster than it is taken."""

from __future__ import annotations

import socket
import tracemalloc

import pytest
from helpers.forwarding import GO_ON, chunk, head, in_background, said_error
from helpers.wire import Wire

from ballast_worker.serving.catalog import Elsewhere
from ballast_worker.serving.http_stream import WINDOW

READ = 256 << 10
"""The most that one read of the event loop brings."""


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
