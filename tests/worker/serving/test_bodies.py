# SPDX-License-Identifier: Apache-2.0
"""How much of the bodies of requests is held: nothing of a client that has left, and never more than was set."""

from __future__ import annotations

import gc
import gzip
import json
import tracemalloc
from contextlib import suppress

import grpc
import numpy as np
import pytest
from helpers.wire import Wire

from ballast_contract.config import Serving
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.serving.bodies import Bodies, BodiesFullError, Share
from ballast_worker.serving.http_connection import HttpConnection
from ballast_worker.serving.http_limits import Limits

MI = 1 << 20
X = np.arange(8, dtype=np.float32).reshape(1, 8)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X[0].tolist()}]}).encode()


class Transport:
    """As much of one as a connection uses; whatever is written is kept."""

    def __init__(self) -> None:
        self.written, self.closing = bytearray(), False

    def set_write_buffer_limits(self, high) -> None:
        del high

    def get_extra_info(self, name) -> None:
        del name

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data) -> None:
        self.written += data

    def writelines(self, pieces) -> None:
        self.written += b"".join(pieces)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closing = True

    abort = close


class Scene:
    """A connection by hand, its handler, and the exchanges that wait for answers."""

    def __init__(self, limit: int, *, whole: bool = True) -> None:
        self.bodies, self.whole, self.exchanges = Bodies(limit), whole, []
        self.transport = Transport()
        self.connection = HttpConnection(
            self,
            opened=lambda _: None,
            closed=lambda _: None,
            limits=Limits.of(Serving()),
            bodies=self.bodies,
            clock=lambda: 0.0,
        )
        self.connection.connection_made(self.transport)

    def wants_whole(self, request) -> bool:
        del request
        return self.whole

    def handle(self, exchange) -> None:
        self.exchanges.append(exchange)

    def close(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)


def post(nbytes: int) -> bytes:
    return b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % nbytes


@pytest.fixture
def uncollected():
    """Without the garbage collector: memory goes with the last reference."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_a_client_that_leaves_during_an_upload_leaves_nothing_behind():
    scenes = [Scene(100 * MI) for _ in range(8)]
    for scene in scenes:
        scene.send(post(2 * MI))
        scene.send(bytes(MI))
        assert scene.bodies.held == MI
        scene.connection.connection_lost(None)
        assert scene.bodies.held == 0
    assert tracemalloc.get_traced_memory()[0] < MI


@pytest.mark.usefixtures("uncollected")
async def test_what_had_come_of_a_refused_body_is_forgotten_at_once():
    scene = Scene(100 * MI)
    scene.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (MI, bytes(MI)))
    scene.send(b"no chunk\r\n")
    assert scene.transport.written.startswith(b"HTTP/1.1 400")
    assert scene.bodies.held == 0
    assert tracemalloc.get_traced_memory()[0] < MI // 2


async def test_a_body_that_would_exceed_the_bound_is_refused_and_one_that_comes_later_is_taken():
    scene = Scene(3 * MI)
    scene.send(post(2 * MI) + bytes(2 * MI))
    other = Scene(0)
    other.connection = HttpConnection(
        other, opened=lambda _: None, closed=lambda _: None, limits=Limits.of(Serving()), bodies=scene.bodies,
        clock=lambda: 0.0,
    )  # fmt: skip
    other.connection.connection_made(other.transport)
    other.send(post(2 * MI))
    other.send(bytes(MI))
    other.send(bytes(MI))
    head, _, said = bytes(other.transport.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 1\r\n" in head
    assert "serving.maxHeldBytes, which is 3145728: try again" in json.loads(said)["error"]
    assert scene.bodies.held == 2 * MI
    scene.exchanges.pop().respond(200, [b"{}"])
    assert scene.bodies.held == 0
    scene.send(post(3 * MI) + bytes(3 * MI))
    assert len(scene.exchanges) == 1


async def test_what_is_passed_on_is_not_held():
    scene = Scene(MI, whole=False)
    taken = []

    class Taker:
        write = staticmethod(lambda piece: taken.append(len(piece)))
        end = staticmethod(lambda: taken.append(0))

    scene.send(post(3 * MI))
    scene.exchanges[0].stream.take(Taker)
    for _ in range(6):
        scene.send(bytes(MI // 2))
    assert taken == [MI // 2] * 6 + [0]


async def test_chunks_of_few_bytes_take_little_more_than_their_bytes():
    scene = Scene(100 * MI)
    tracemalloc.start()
    try:
        scene.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            scene.send(b"2\r\nab\r\n" * 5000)
        assert tracemalloc.get_traced_memory()[0] < MI // 2
    finally:
        tracemalloc.stop()
    scene.send(b"0\r\n\r\n")
    assert scene.exchanges[0].request.body == b"ab" * 100_000


def test_a_share_is_given_back_with_its_last_reference_on_whatever_thread():
    bodies = Bodies(10)
    share = Share(bodies)
    share.take(6)
    share.take(4)
    with pytest.raises(BodiesFullError):
        share.take(1)
    also = [share]
    del share
    assert bodies.held == 10
    also.clear()
    assert bodies.held == 0


@pytest.fixture(scope="module")
def narrow(make_server, affine):
    """A worker that holds 64 KiB of requests, and a model of it whose weights never come."""
    server = make_server(
        {"affine": affine, "cold": affine},
        config={"max_request_bytes": 64 << 10, "max_held_bytes": 64 << 10},
        automatic=False,
    )
    server.rig.on_device(lambda: server.rig.residency.complete("affine"))
    return server


def ask(server, body: bytes, *, model: str = "affine", headers: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    wire = Wire(server.http)
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n"
    wire.send(head % (model.encode(), headers, len(body)) + body)
    try:
        return wire.answer()
    finally:
        wire.socket.close()


def test_a_body_counts_with_what_it_is_inflated_to(narrow):
    whole = BODY.ljust(64 << 10)
    packed = gzip.compress(whole)
    status, headers, said = ask(narrow, packed, headers=b"Content-Encoding: gzip\r\n")
    assert (status, headers["retry-after"]) == (503, "1"), said
    assert ask(narrow, gzip.compress(BODY), headers=b"Content-Encoding: gzip\r\n")[0] == 200
    assert ask(narrow, whole)[0] == 200


def test_a_call_over_grpc_counts_until_it_is_executed_although_its_client_has_left(narrow):
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 8])
    message = pb.ModelInferRequest(
        model_name="cold", id="i" * (40 << 10), inputs=[tensor], raw_input_contents=[X.tobytes()]
    )
    with grpc.insecure_channel(narrow.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        waiting = infer.future(message.SerializeToString())
        while not narrow.rig.on_device(lambda: narrow.rig.engine.queued("cold")):
            pass
        waiting.cancel()
        message.model_name = "affine"
        with pytest.raises(grpc.RpcError) as refused:
            infer(message.SerializeToString(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(refused.value.trailing_metadata())["retry-after"] == "1"
        assert ask(narrow, BODY + b" " * (40 << 10))[0] == 503
        narrow.rig.on_device(lambda: narrow.rig.residency.complete("cold"))
        while True:  # until the call is executed, and its answer is nobody's
            with suppress(grpc.RpcError):
                infer(message.SerializeToString(), timeout=10)
                break


def test_a_bound_below_one_request_is_no_configuration():
    with pytest.raises(ValueError, match="maxHeldBytes is 1 and maxRequestBytes 2"):
        Serving.model_validate({"maxHeldBytes": 1, "maxRequestBytes": 2})
