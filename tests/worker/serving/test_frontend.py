# SPDX-License-Identifier: Apache-2.0
"""What clients are told: readiness, refusals in both protocols, deadlines, and how a front end ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import socketserver
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from ballast_contract.config import Serving
from ballast_contract.reasons import Reason
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import grpc_codec, grpc_server, http_times
from ballast_worker.serving.frontend import Frontend, run_in_thread

X = np.arange(8, dtype=np.float32).reshape(1, 8)
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X[0].tolist()}]}
INFER = "/inference.GRPCInferenceService/ModelInfer"


def ask(address: str, method: str, path: str, document: object = None) -> tuple[int, dict[str, str], object]:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path, None if document is None else json.dumps(document))
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), json.loads(body)


def message(model: str, **fields) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 8])
    return pb.ModelInferRequest(
        model_name=model, inputs=[tensor], raw_input_contents=[X.tobytes()], **fields
    ).SerializeToString()


def call(address: str, data: bytes, *, timeout: float | None = 10, method: str = INFER) -> bytes | grpc.RpcError:
    with grpc.insecure_channel(address) as channel:
        try:
            return channel.unary_unary(method)(data, timeout=timeout)
        except grpc.RpcError as error:
            return error


@pytest.fixture(scope="module")
def cold(make_server, affine):
    """A worker on which nothing is loaded unless a test says so."""
    server = make_server({"cold": affine, "warm": affine}, automatic=False)
    server.rig.on_device(lambda: server.rig.residency.complete("warm"))
    return server


def test_the_server_is_live_always_and_ready_when_its_plan_is_accepted(server):
    assert ask(server.http, "GET", "/v2/health/live")[::2] == (200, {"live": True})
    assert ask(server.http, "GET", "/v2/health/ready")[::2] == (200, {"ready": True})
    server.catalog.accepted = False
    try:
        assert ask(server.http, "GET", "/v2/health/ready")[::2] == (503, {"ready": False})
        assert ask(server.http, "GET", "/v2/health/live")[0] == 200
        ready = call(server.grpc, b"", method="/inference.GRPCInferenceService/ServerReady")
        assert pb.ServerReadyResponse.FromString(ready) == pb.ServerReadyResponse(ready=False)
    finally:
        server.catalog.accepted = True
    metadata = ask(server.http, "GET", "/v2")[2]
    assert metadata["name"] == "ballast"


def test_a_cold_model_is_ready_because_a_call_would_be_answered_after_its_load(cold):
    assert ask(cold.http, "GET", "/v2/models/cold/ready")[::2] == (200, {"name": "cold", "ready": True})


@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry"),
    [
        (Refusal(Reason.MEASURING, "being prepared", 5.0), 503, "UNAVAILABLE", "5"),
        (Refusal(Reason.BUNDLE_INVALID, "no such tensor"), 503, "FAILED_PRECONDITION", None),
        (Refusal(Reason.QUARANTINED, "it killed the worker"), 503, "FAILED_PRECONDITION", None),
        (Refusal(Reason.DRAINING, "ending", 1.0), 503, "UNAVAILABLE", "1"),
        (Refusal(Reason.QUEUE_FULL, "full", 0.2), 429, "RESOURCE_EXHAUSTED", "1"),
        (Refusal(Reason.LOADING, "takes 12 s", 11.2), 503, "RESOURCE_EXHAUSTED", "12"),
        (Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "no room", 2.0), 503, "RESOURCE_EXHAUSTED", "2"),
        (Refusal(Reason.DEADLINE_EXCEEDED, "too late"), 504, "DEADLINE_EXCEEDED", None),
        (Refusal(Reason.EXECUTION_FAILED, "it failed"), 500, "INTERNAL", None),
        (Refusal(Reason.NOT_REQUESTED, "gone"), 404, "NOT_FOUND", None),
    ],
    ids=lambda value: value.reason.value if isinstance(value, Refusal) else None,
)
def test_a_refusal_is_told_with_the_right_status_and_when_to_try_again(server, refusal, status, code, retry):
    server.catalog.table["refused"] = refusal
    got, headers, document = ask(server.http, "POST", "/v2/models/refused/infer", BODY)
    assert (got, document) == (status, {"error": refusal.message})
    assert headers.get("Retry-After") == retry
    assert ask(server.http, "GET", "/v2/models/refused/ready")[0] == status
    error = call(server.grpc, message("refused"))
    assert (error.code().name, error.details()) == (code, refusal.message)
    assert dict(error.trailing_metadata()).get("retry-after") == retry


def test_the_deadline_of_a_grpc_call_and_the_timeout_of_a_body_end_the_wait(cold):
    assert call(cold.grpc, message("cold"), timeout=0.2).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    own = pb.InferParameter(int64_param=200_000)
    error = call(cold.grpc, message("cold", parameters={"timeout": own}))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the deadline of a request for model 'cold' passed" in error.details()
    status, _, document = ask(cold.http, "POST", "/v2/models/cold/infer", BODY | {"parameters": {"timeout": 200_000}})
    assert status == 504
    assert "the deadline of a request for model 'cold' passed" in document["error"]


def test_a_load_that_takes_too_long_is_refused_at_once_with_the_time_to_try_again(cold):
    cold.rig.residency.load_seconds["cold"] = 3600.0
    try:
        status, headers, document = ask(cold.http, "POST", "/v2/models/cold/infer", BODY)
        assert status == 503
        assert 3590 < int(headers["Retry-After"]) <= 3600
        assert "the weights of model 'cold' are on their way" in document["error"]
        error = call(cold.grpc, message("cold"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 3590 < int(dict(error.trailing_metadata())["retry-after"]) <= 3600
    finally:
        cold.rig.residency.load_seconds.clear()


def test_damaged_messages_and_unknown_methods_are_refused(server):
    assert call(server.grpc, b"\x0a\xff").code() is grpc.StatusCode.INVALID_ARGUMENT
    for method in ("ModelReady", "ModelMetadata"):
        error = call(server.grpc, b"\x0a\xff", method=f"/inference.GRPCInferenceService/{method}")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = call(server.grpc, b"", method="/inference.GRPCInferenceService/RepositoryIndex")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_over_the_limit_is_refused(make_server, affine):
    small = make_server({"affine": affine}, config={"max_request_bytes": 1000})
    large = message("affine", id="x" * 2000)
    assert call(small.grpc, large).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(call(small.grpc, message("affine")), bytes)


def test_requests_under_way_are_answered_while_the_front_end_stops(make_server, affine):
    server = make_server({"cold": affine}, automatic=False)
    results: list[object] = []
    callers = [
        threading.Thread(target=lambda: results.append(ask(server.http, "POST", "/v2/models/cold/infer", BODY)[0])),
        threading.Thread(target=lambda: results.append(type(call(server.grpc, message("cold"))))),
    ]
    for caller in callers:
        caller.start()
    while server.rig.on_device(lambda: server.rig.engine.queued("cold")) < 2:
        pass
    idle = http.client.HTTPConnection(server.http, timeout=10)
    idle.connect()
    stopper = threading.Thread(target=server.front.stop, kwargs={"grace_seconds": 30})
    stopper.start()
    assert idle.sock.recv(1) == b"", "a connection without a request is closed at once"
    idle.close()
    server.rig.on_device(lambda: server.rig.residency.complete("cold"))
    for caller in (*callers, stopper):
        caller.join(30)
        assert not caller.is_alive()
    assert sorted(results, key=str) == [200, bytes]
    with pytest.raises(ConnectionError):
        ask(server.http, "GET", "/v2/health/live")


def test_a_retired_front_end_answers_and_sends_clients_elsewhere(make_server, affine):
    server = make_server({"affine": affine})
    connection = http.client.HTTPConnection(server.http, timeout=10)
    connection.request("GET", "/v2/models/affine/ready")
    answer = connection.getresponse()
    assert (answer.read() != b"", answer.will_close) == (True, False)
    server.front.retire()
    while not answer.will_close:  # one that is open
        connection.request("GET", "/v2/models/affine/ready")
        answer = connection.getresponse()
        assert (answer.status, answer.read() != b"") == (200, True)
    connection.request("GET", "/v2/models/affine/ready")  # and one that is opened after that
    answer = connection.getresponse()
    assert (answer.status, answer.read() != b"", answer.will_close) == (200, True, True)
    connection.close()


class Relay:
    """Passes bytes on to a port, and counts connections."""

    def __init__(self, port: int) -> None:
        self.port, self.connections = port, 0
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                relay.connections += 1
                with socket.create_connection(("127.0.0.1", relay.port)) as other:
                    back = threading.Thread(target=_copy, args=(other, self.request), daemon=True)
                    back.start()
                    _copy(self.request, other)
                    back.join()

        return Handler

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_connections_have_an_age_and_no_call_is_lost_when_it_is_reached(make_server, affine, monkeypatch, protocol):
    for module in (http_times, grpc_server):
        monkeypatch.setattr(module, "CONNECTION_SECONDS", 0.2)
    server = make_server({"affine": affine})
    relay = Relay(server.front.ports.http if protocol == "http" else server.front.ports.grpc)
    triton = tritonclient.http if protocol == "http" else tritonclient.grpc
    item = triton.InferInput("x", [1, 8], "FP32")
    item.set_data_from_numpy(np.zeros((1, 8), np.float32))
    with triton.InferenceServerClient(relay.address) as client:
        while relay.connections < 4:
            assert client.infer("affine", [item]).as_numpy("y").shape == (1, 4)
    relay.close()


@pytest.mark.parametrize(("port", "setting"), [("http_port", "serving.httpPort"), ("grpc_port", "serving.grpcPort")])
def test_a_port_that_is_taken_is_an_error_at_the_start(rig, port, setting):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = {"host": "127.0.0.1", "http_port": 0, "grpc_port": 0, port: taken.getsockname()[1]}
        with pytest.raises(OSError, match=f"{setting} {taken.getsockname()[1]} cannot"):
            run_in_thread(Frontend(Serving.model_validate(config), rig.engine, None))


def test_every_pipelined_request_is_answered_before_a_stopping_connection_closes(make_server, affine):
    server = make_server({"cold": affine}, automatic=False)
    body = json.dumps(BODY).encode()
    request = b"POST /v2/models/cold/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(request * 3)
        while server.rig.on_device(lambda: server.rig.engine.queued("cold")) < 3:
            pass
        stopper = threading.Thread(target=server.front.stop, kwargs={"grace_seconds": 30})
        stopper.start()
        while server.rig.on_device(server.front._frontend._http._server.is_serving):
            pass
        server.rig.on_device(lambda: server.rig.residency.complete("cold"))
        received = b""
        while piece := client.recv(65536):
            received += piece
        stopper.join(30)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b"Connection: close") == 1


def test_a_model_that_cannot_be_called_yet_is_not_ready_and_one_that_is_not_there_is_an_error(server):
    server.catalog.table["early"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    method = "/inference.GRPCInferenceService/ModelReady"
    ready = call(server.grpc, pb.ModelReadyRequest(name="early").SerializeToString(), method=method)
    assert pb.ModelReadyResponse.FromString(ready) == pb.ModelReadyResponse(ready=False)
    error = call(server.grpc, pb.ModelReadyRequest(name="nobody").SerializeToString(), method=method)
    assert error.code() is grpc.StatusCode.NOT_FOUND


def test_a_fault_of_ours_over_grpc_is_internal_in_words_of_ours_and_logged_once(server, monkeypatch, caplog):
    def fault(*_):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(grpc_codec, "decode", fault)
    error = call(server.grpc, message("affine"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "the worker failed to answer this call; its log has the reason"
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_a_timeout_over_grpc_of_very_many_digits_is_the_clients_fault(server):
    parameters = {"timeout": pb.InferParameter(string_param="9" * 400)}
    error = call(server.grpc, message("affine", parameters=parameters))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_what_grpc_says_of_a_client_that_left_in_the_middle_is_no_trouble_and_everything_else_is(server, caplog):
    loop = server.front._loop
    for error in (grpc.aio.InternalError("batch failed"), ZeroDivisionError()):
        loop.call_soon_threadsafe(loop.call_exception_handler, {"message": "never retrieved", "exception": error})
    server.front.deserted()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
