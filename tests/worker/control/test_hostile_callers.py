# SPDX-License-Identifier: Apache-2.0
"""Callers of the control service and of the pages that send what cannot be read, or leave: they get one line or none, and
the log and the error stream stay clean.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import socket
import socketserver
import struct
import threading
from contextlib import suppress

import grpc
import pytest
from helpers.running_worker import assigned

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import main
from ballast_worker.control.http import PageServer, Response
from ballast_worker.control.refusals import Refusals
from ballast_worker.control.server import ControlServer
from ballast_worker.control.service import ControlService

RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def managed(config_for, start):
    return start(config_for(managed=True))


@pytest.fixture
def pages():
    began, ends = threading.Event(), threading.Event()

    def slow(_):
        began.set()
        ends.wait(20)
        return Response(bytes(8 << 20))

    server = PageServer("127.0.0.1", 0, {"/slow": slow, "/a": lambda _: Response.text("a")}, setting="test")
    server.began, server.ends = began, ends
    yield server
    ends.set()
    server.stop()


def get(port: int, target: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest("GET", target, skip_host=True)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_client_of_a_page_that_resets_leaves_no_trace(pages, capfd, caplog):
    for request in (b"GET /sl", b"GET /slow HTTP/1.1\r\n\r\n"):
        client = socket.create_connection(("127.0.0.1", pages.port))
        client.sendall(request)
        if b"\r\n" in request:
            assert pages.began.wait(20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
    pages.ends.set()
    assert get(pages.port, "/a") == (200, b"a\n")
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        pass
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_address_that_cannot_be_read_is_refused(pages, capfd):
    status, said = get(pages.port, "http://[::1/metrics")
    assert status == 400
    assert b"cannot be read" in said
    assert "Traceback" not in capfd.readouterr().err


def test_a_limit_of_very_many_digits_is_refused(managed):
    status, said = managed.page(f"/explain?limit={'9' * 5000}")
    assert status == 400
    assert len(said) < 500
    assert managed.page("/explain?limit=999999999") == (200, "[]")


@pytest.mark.parametrize("method", ["GetPlan", "ApplyAssignment", "Watch"])
def test_a_control_message_that_cannot_be_read_is_the_callers_fault(managed, method, caplog):
    with grpc.insecure_channel(f"127.0.0.1:{managed.process.control_port}") as channel:
        path = f"/ballast.control.v1.Control/{method}"
        with pytest.raises(grpc.RpcError) as error:
            list(channel.unary_stream(path)(b"\x0a\xff")) if method == "Watch" else channel.unary_unary(path)(
                b"\x0a\xff"
            )
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be read" in error.value.details()
    assert not [record for record in caplog.records if record.exc_info]


def test_an_assignment_that_cannot_be_kept_is_refused_with_the_directory(managed, tmp_path, small_bundle, caplog):
    managed.assign(epoch=1)
    shutil.rmtree(tmp_path / "state")
    for call, request in (
        (
            managed.control.ApplyAssignment,
            pb.ApplyAssignmentRequest(epoch=1, generation=2, models=[assigned(small_bundle, "m")]),
        ),
        (managed.control.GetPlan, pb.GetPlanRequest(epoch=2)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call(request)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"stateDirectory '{tmp_path / 'state'}' cannot be written: No such file" in error.value.details()
    assert not [record for record in caplog.records if record.exc_info]
    managed.control.GetPlan(pb.GetPlanRequest(epoch=1))


def test_a_caller_that_has_left_is_not_counted_as_refused():
    class Left:
        def peer(self):
            return ""

        def set_trailing_metadata(self, _):
            pass

        def abort(self, code, message):
            raise grpc.RpcError(code, message)

    class Worker:
        epoch = 5

    refusals = Refusals()
    with suppress(grpc.RpcError):
        ControlService(Worker(), None, refusals).Release(pb.ReleaseRequest(), Left())
    assert sum(refusals.counts().values()) == 0


def test_a_method_that_there_is_not_is_unimplemented(config_for):
    server = ControlServer(config_for(), ControlService(None, None, Refusals()), None, Refusals())
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/ballast.control.v1.Control/No")(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        server.stop(grace_seconds=0.0)


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"error": "no"}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[{"a": 1}]',
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n17",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + b"[" * 4000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_explain_asked_of_something_else_says_so_in_one_line(answer, form, capsys, monkeypatch):
    class Other(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("BALLAST_SERVING_INTROSPECTION_PORT", str(server.server_address[1]))
        assert main.main(["explain", *form]) == 1
        server.shutdown()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ballast-worker explain: ")
    assert said.err.count("\n") == 1
