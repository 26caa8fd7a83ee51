# SPDX-License-Identifier: Apache-2.0
"""When the other worker or the client goes."""

from __future__ import annotations

import grpc
import pytest
from helpers.forwarding import GO_ON, SAID, head, said_error

from ballast_contract.names import OIP_SERVICE
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.serving.catalog import Elsewhere, Endpoint
from ballast_worker.serving.forwarded import Result
from ballast_worker.serving.http_stream import WINDOW


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


def test_a_client_that_leaves_takes_its_call_over_grpc_along(way, counted, silent):
    way.catalog.table["far"] = Elsewhere((Endpoint("127.0.0.1", 1, silent.port),))
    message = pb.ModelInferRequest(model_name="far", id="i" * 1000).SerializeToString()
    with grpc.insecure_channel(way.grpc) as channel:
        call = channel.unary_unary(f"/{OIP_SERVICE}/ModelInfer").future(message)
        assert silent.asked.get(timeout=10) == message
        call.cancel()
    assert silent.left.wait(10)
    assert counted.get(timeout=10) == (Result.LEFT, len(message), 0)


def test_a_client_whose_deadline_ends_over_grpc_has_not_left_the_worker_is_late(way, counted, silent):
    way.catalog.table["far"] = Elsewhere((Endpoint("127.0.0.1", 1, silent.port),))
    message = pb.ModelInferRequest(model_name="far").SerializeToString()
    with grpc.insecure_channel(way.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{OIP_SERVICE}/ModelInfer")(message, timeout=0.5)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert counted.get(timeout=10) == (Result.LATE, len(message), 0)
