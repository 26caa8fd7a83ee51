# SPDX-License-Identifier: Apache-2.0
"""A pool of workers answers for any model at any of them: one hop, body untouched, no loops."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from ballast_contract.names import FORWARDED_HEADER, OIP_SERVICE
from ballast_contract.reasons import Reason
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Endpoint
from ballast_worker.serving.forward_grpc import GrpcForwarder
from ballast_worker.serving.forwarded import Result

X = np.arange(16, dtype=np.float32).reshape(2, 8)
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def endpoint(server) -> Endpoint:
    return Endpoint("127.0.0.1", server.front.ports.http, server.front.ports.grpc)


def dead() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as once:
        return Endpoint("127.0.0.1", once.getsockname()[1], once.getsockname()[1])


@pytest.fixture(scope="module")
def holder(make_server, affine):
    """The worker that has the models."""
    server = make_server({"far": affine, "team/far": affine, "behind a dead one": affine})
    server.catalog.table["failing"] = Refusal(Reason.LOAD_FAILED_WILL_RETRY, "unreadable", retry_after_seconds=3.0)
    server.catalog.table["refused"] = Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "no room", retry_after_seconds=7.0)
    return server


@pytest.fixture(scope="module")
def way(make_server, affine, holder):
    """The worker that is asked."""
    server = make_server({"near": affine})
    for name in ("far", "team/far", "refused", "failing", "moved away"):
        server.catalog.table[name] = Elsewhere((endpoint(holder),))
    server.catalog.table["behind a dead one"] = Elsewhere((dead(), endpoint(holder)))
    server.catalog.table["nowhere"] = Elsewhere((dead(),))
    server.catalog.table["unknown place"] = Elsewhere(())
    return server


@pytest.fixture(params=list(PROTOCOLS))
def triton(request):
    return PROTOCOLS[request.param]


@pytest.fixture
def client(triton, way):
    client = triton.InferenceServerClient(way.http if triton is tritonclient.http else way.grpc)
    yield client
    client.close()


def tensor(triton, array=X):
    item = triton.InferInput("x", list(array.shape), "FP32")
    item.set_data_from_numpy(array)
    return item


@pytest.mark.parametrize("model", ["far", "team/far"])
def test_a_call_for_a_model_of_another_worker_is_answered(client, triton, affine, model):
    for _ in range(3):
        result = client.infer(model, [tensor(triton)])
        np.testing.assert_allclose(result.as_numpy("y"), affine.expected(X)[0], rtol=1e-6, atol=1e-6)
    assert client.is_model_ready(model)
    assert client.get_model_metadata(model) is not None


def test_a_compressed_body_is_passed_on_as_it_is(way, affine):
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8], "data": X.tolist()}]}).encode()
    connection = http.client.HTTPConnection(way.http, timeout=10)
    connection.request("POST", "/v2/models/far/infer", gzip.compress(body), {"Content-Encoding": "gzip"})
    answer = json.loads(connection.getresponse().read())
    np.testing.assert_allclose(answer["outputs"][0]["data"], affine.expected(X)[0].reshape(-1), rtol=1e-5, atol=1e-6)
    connection.request("HEAD", "/v2/models/far")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    connection.close()


def test_errors_of_the_other_worker_come_back_as_they_are(client, triton):
    with pytest.raises(InferenceServerException, match=r"\[2, 3\]; \[batch, 8\] is wanted"):
        client.infer("far", [tensor(triton, np.zeros((2, 3), np.float32))])
    with pytest.raises(InferenceServerException, match="no room") as caught:
        client.infer("refused", [tensor(triton)])
    assert caught.value.status() in ("503", "StatusCode.RESOURCE_EXHAUSTED")
    with pytest.raises(InferenceServerException, match="unreadable"):
        client.infer("failing", [tensor(triton)])


def test_when_to_try_again_is_passed_on(way):
    connection = http.client.HTTPConnection(way.http, timeout=10)
    connection.request("GET", "/v2/models/refused/ready")
    assert connection.getresponse().headers["Retry-After"] == "7"
    connection.close()
    with grpc.insecure_channel(way.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            pb.ModelInferRequest(model_name="refused").SerializeToString()
        )
    assert dict(caught.value.trailing_metadata())["retry-after"] == "7"


def test_a_worker_that_cannot_be_reached_is_passed_over(client, triton, affine):
    for model in ("nowhere", "unknown place", "moved away"):
        with pytest.raises(
            InferenceServerException, match="is on its way to a worker, or being prepared there: try again"
        ) as caught:
            client.infer(model, [tensor(triton)])
        assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
    result = client.infer("behind a dead one", [tensor(triton)])
    np.testing.assert_allclose(result.as_numpy("y"), affine.expected(X)[0], rtol=1e-6, atol=1e-6)


def test_a_model_that_leaves_while_a_call_waits_is_asked_for_where_it_is_now(make_server, affine, holder, triton):
    way = make_server({"far": affine}, automatic=False)
    address = way.http if triton is tritonclient.http else way.grpc
    results: list[np.ndarray] = []

    def call() -> None:
        with triton.InferenceServerClient(address) as client:
            results.append(client.infer("far", [tensor(triton)]).as_numpy("y"))

    caller = threading.Thread(target=call)
    caller.start()
    while not way.rig.on_device(lambda: way.rig.engine.queued("far")):
        pass
    way.catalog.table["far"] = Elsewhere((endpoint(holder),))
    way.rig.engine.remove("far", lambda: None)
    caller.join(30)
    np.testing.assert_allclose(results[0], affine.expected(X)[0], rtol=1e-6, atol=1e-6)


@pytest.fixture
def patient(make_server, affine):
    """A worker whose calls wait for models on their way, at most one for each model."""
    return make_server({"here": affine}, patience_seconds=30.0, config={"max_queue": 1})


def waiting(server, triton, model, monkeypatch) -> tuple[threading.Thread, list[np.ndarray]]:
    """A call that waits for its model: it has been looked for twice."""
    address = server.http if triton is tritonclient.http else server.grpc
    results: list[np.ndarray] = []
    looks = threading.Semaphore(0)
    find = server.catalog.find

    def counted(name: str):
        looks.release()
        return find(name)

    def call() -> None:
        with triton.InferenceServerClient(address) as client:
            results.append(client.infer(model, [tensor(triton)]).as_numpy("y"))

    monkeypatch.setattr(server.catalog, "find", counted)
    caller = threading.Thread(target=call)
    caller.start()
    assert looks.acquire(timeout=30)
    assert looks.acquire(timeout=30)
    assert results == []
    return caller, results


@pytest.mark.parametrize("place", [Elsewhere(()), Elsewhere((dead(),))], ids=["nowhere", "on a dead worker"])
def test_a_call_waits_for_a_model_on_its_way_and_goes_where_it_arrives(
    patient, holder, affine, triton, place, monkeypatch
):
    patient.catalog.table["far"] = place
    caller, results = waiting(patient, triton, "far", monkeypatch)
    patient.catalog.table["far"] = Elsewhere((endpoint(holder),))
    caller.join(30)
    np.testing.assert_allclose(results[0], affine.expected(X)[0], rtol=1e-6, atol=1e-6)


def test_a_call_waits_for_a_model_that_is_being_prepared_here(patient, affine, triton, monkeypatch):
    patient.catalog.table["here"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    caller, results = waiting(patient, triton, "here", monkeypatch)
    del patient.catalog.table["here"]
    caller.join(30)
    np.testing.assert_allclose(results[0], affine.expected(X)[0], rtol=1e-6, atol=1e-6)


def test_no_more_calls_wait_than_may_be_queued(patient, triton, monkeypatch):
    patient.catalog.table["here"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    caller, results = waiting(patient, triton, "here", monkeypatch)
    with (
        triton.InferenceServerClient(patient.http if triton is tritonclient.http else patient.grpc) as client,
        pytest.raises(InferenceServerException, match="being prepared"),
    ):
        client.infer("here", [tensor(triton)])
    assert results == []
    del patient.catalog.table["here"]
    caller.join(30)
    assert len(results) == 1


def test_who_asks_whether_a_model_is_ready_does_not_wait(patient, triton):
    patient.catalog.table["here"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    patient.catalog.table["far"] = Elsewhere((dead(),))
    with triton.InferenceServerClient(patient.http if triton is tritonclient.http else patient.grpc) as client:
        assert not client.is_model_ready("here")
        assert not client.is_model_ready("far")


def test_a_call_is_passed_on_once(way):
    path = "/v2/models/far/infer"
    connection = http.client.HTTPConnection(way.http, timeout=10)
    connection.request("POST", path, b"{}", {FORWARDED_HEADER: "1"})
    assert connection.getresponse().status == 404
    connection.close()
    with grpc.insecure_channel(way.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            pb.ModelInferRequest(model_name="far").SerializeToString(), metadata=((FORWARDED_HEADER, "1"),)
        )
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_two_workers_that_point_at_each_other_answer_instead_of_going_round(make_server, affine, triton):
    one, two = make_server({"a": affine}), make_server({"a": affine})
    one.catalog.table["lost"] = Elsewhere((endpoint(two),))
    two.catalog.table["lost"] = Elsewhere((endpoint(one),))
    client = triton.InferenceServerClient(one.http if triton is tritonclient.http else one.grpc)
    with pytest.raises(InferenceServerException, match="on its way to a worker"):
        client.infer("lost", [tensor(triton)])
    client.close()


def test_a_connection_that_the_other_worker_closed_is_replaced(make_server, affine, holder):
    way = make_server({"near": affine})
    first = make_server({"far": affine})
    way.catalog.table["far"] = Elsewhere((endpoint(first), endpoint(holder)))
    client = tritonclient.http.InferenceServerClient(way.http)
    client.infer("far", [tensor(tritonclient.http)])
    first.front.stop(grace_seconds=0)
    result = client.infer("far", [tensor(tritonclient.http)])
    np.testing.assert_allclose(result.as_numpy("y"), affine.expected(X)[0], rtol=1e-6, atol=1e-6)
    client.close()


def test_a_fault_while_a_request_is_passed_on_is_an_answer(way):
    way.catalog.table["impossible place"] = Elsewhere((Endpoint("no host\udc80", 1, 1),))
    connection = http.client.HTTPConnection(way.http, timeout=30)
    connection.request("GET", "/v2/models/impossible%20place")
    answer = connection.getresponse()
    assert answer.status == 500
    assert "log" in json.loads(answer.read())["error"]
    connection.request("GET", "/v2/health/live")  # and the connection serves on
    assert json.loads(connection.getresponse().read()) == {"live": True}
    connection.close()


class Slow(grpc.GenericRpcHandler):
    """Has no model, or refuses otherwise, and takes its time on a test's clock to say so."""

    def __init__(self, clock: list[float], seconds: float, code: grpc.StatusCode = grpc.StatusCode.NOT_FOUND) -> None:
        self.clock, self.seconds, self.code = clock, seconds, code
        self.granted: list[float] = []

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    async def answer(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.granted.append(context.time_remaining())
        self.clock[0] += self.seconds
        await context.abort(self.code)


async def forward_through(slow: list[Slow], clock: list[float], timeout_seconds: float) -> bytes | None:
    servers = [grpc.aio.server(handlers=(one,)) for one in slow]
    ports = [server.add_insecure_port("127.0.0.1:0") for server in servers]
    forwarder = GrpcForwarder(clock=lambda: clock[0])
    try:
        for server in servers:
            await server.start()
        endpoints = [Endpoint("127.0.0.1", 1, port) for port in ports]
        return await forwarder.forward(endpoints, "/x/Y", b"", timeout_seconds=timeout_seconds)
    finally:
        await forwarder.close()
        for server in servers:
            await server.stop(None)


def test_all_workers_that_are_asked_share_one_deadline():
    clock = [0.0]
    slow = [Slow(clock, 60.0), Slow(clock, 0.0)]
    assert asyncio.run(forward_through(slow, clock, 100.0)) is None
    assert slow[1].granted[0] < 50.0
    slow = [Slow(clock, 101.0), Slow(clock, 0.0)]
    with pytest.raises(TimeoutError):
        asyncio.run(forward_through(slow, clock, 100.0))
    assert slow[1].granted == []


def test_the_time_that_is_over_is_told_from_a_deadline_that_the_other_worker_speaks_of():
    clock = [0.0]
    with pytest.raises(grpc.aio.AioRpcError):
        asyncio.run(forward_through([Slow(clock, 99.0, grpc.StatusCode.DEADLINE_EXCEEDED)], clock, 100.0))
    with pytest.raises(TimeoutError):
        asyncio.run(forward_through([Slow(clock, 101.0, grpc.StatusCode.DEADLINE_EXCEEDED)], clock, 100.0))


def test_a_worker_that_does_not_answer_a_call_over_grpc_in_time_is_late(make_server, affine):
    slow = make_server({"cold": affine}, automatic=False)
    hasty = make_server({}, config={"request_timeout_seconds": 1})
    hasty.catalog.table["cold"] = Elsewhere((endpoint(slow),))
    request = pb.ModelInferRequest(model_name="cold")
    request.inputs.add(name="x", datatype="FP32", shape=[2, 8])
    request.raw_input_contents.append(X.tobytes())
    with grpc.insecure_channel(hasty.grpc) as channel:
        call = channel.unary_unary(f"/{OIP_SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(request.SerializeToString())
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert refused.value.details() == "the worker that has model 'cold' did not answer within 1 s"
    assert hasty.front.forwarded.requests["grpc", Result.LATE] == 1
