# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS of the control service: the operator alone is heard, and whoever is not is named and counted."""

from __future__ import annotations

import contextlib
import logging
import socket

import grpc
import pytest
from helpers.control_tls import certificate_of, connect, files, moment, mount
from helpers.running_worker import Running

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_operator.fleet.authority import Signer
from ballast_worker.control.certificates import Certificates
from ballast_worker.control.process import WorkerProcess
from ballast_worker.control.refusals import Refusals, Refused


@pytest.fixture
def signer() -> Signer:
    return Signer.new(moment())


@pytest.fixture
def directory(signer, tmp_path):
    return mount(files(signer, names.TLS_WORKER_NAME), tmp_path / "tls")


@pytest.fixture
def worker(config_for, start, directory) -> Running:
    return start(config_for(managed=True, control={"tls_directory": str(directory)}))


def operator(signer, **options):
    return files(signer, names.TLS_OPERATOR_NAME, client=True, **options)


def get_plan(worker, contents, **fields):
    with connect(worker.process.control_port, contents) as channel:
        return control_pb2_grpc.ControlStub(channel).GetPlan(pb.GetPlanRequest(**fields), timeout=20)


def refusal(worker, contents) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        get_plan(worker, contents)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    return refused.value


def series(reason) -> str:
    return f'worker_control_refusals_total{{reason="{reason}"}}'


def count(worker, reason) -> float:
    return worker.metric(series(reason))


def test_the_operator_is_heard(worker, signer):
    get_plan(worker, operator(signer))
    with connect(worker.process.control_port, operator(signer)) as channel:
        stream = control_pb2_grpc.ControlStub(channel).Watch(pb.WatchRequest(epoch=1))
        assert next(iter(stream)).WhichOneof("event") == "full"
        stream.cancel()
    assert [count(worker, reason) for reason in ("handshake", "name", "epoch")] == [0, 0, 0]


def test_what_is_asked_of_many_bytes_arrives_whole(worker, signer):
    uri = f"pvc://models/{'x' * 1000}"
    many = [pb.AssignedModel(name=f"m{n}", uri=uri, residency=pb.RESIDENCY_UNPINNED) for n in range(3000)]
    request = pb.ApplyAssignmentRequest(epoch=1, generation=7, models=many)
    with connect(worker.process.control_port, operator(signer)) as channel:
        answer = control_pb2_grpc.ControlStub(channel).ApplyAssignment(request, timeout=60)
    assert (answer.generation, len(answer.refused)) == (7, 3000)


@pytest.mark.parametrize(
    ("contents", "reason", "words"),
    [
        (
            lambda signer: {**operator(Signer.new(moment())), "ca.crt": certificate_of(signer)},
            "handshake",
            "its certificate: unable to get local issuer certificate",
        ),
        (
            lambda signer: operator(signer, at=moment(days=31)),
            "handshake",
            "its certificate: certificate has expired",
        ),
        (
            lambda signer: files(signer, names.TLS_WORKER_NAME),
            "handshake",
            "its certificate: unsuitable certificate purpose",
        ),
        (
            lambda signer: files(signer, "someone.else", client=True),
            "name",
            "its certificate carries someone.else, not operator.ballast.dev",
        ),
    ],
    ids=["of another authority", "expired", "of a worker", "of another name"],
)
def test_another_certificate_is_refused_logged_and_counted(worker, signer, caplog, contents, reason, words):
    with caplog.at_level(logging.WARNING, "ballast_worker"):
        refusal(worker, contents(signer))
    worker.until_metric(series(reason), 1)
    found = [r for r in caplog.records if getattr(r, "event", "") == "control.refused"]
    assert (reason, "127.0.0.1", words) in {(r.reason, r.peer, r.cause) for r in found}
    get_plan(worker, operator(signer))


def test_plain_text_is_not_heard(worker, caplog):
    with grpc.insecure_channel(f"127.0.0.1:{worker.process.control_port}") as channel, pytest.raises(grpc.RpcError):
        control_pb2_grpc.ControlStub(channel).GetPlan(pb.GetPlanRequest(), timeout=20)
    worker.until_metric(series("handshake"), 1)
    assert "no TLS with a client certificate" in caplog.text


def test_strangers_that_hold_many_connections_do_not_keep_the_operator_out(worker, signer):
    with contextlib.ExitStack() as held:
        for _ in range(100):
            held.enter_context(socket.create_connection(("127.0.0.1", worker.process.control_port), timeout=20))
        get_plan(worker, operator(signer))
    worker.until_metric(series("handshake"), 100 - 64)


def test_a_caller_without_an_epoch_is_not_heard_although_it_is_on_loopback(worker, signer):
    with connect(worker.process.control_port, operator(signer)) as channel, pytest.raises(grpc.RpcError) as refused:
        control_pb2_grpc.ControlStub(channel).Release(pb.ReleaseRequest(), timeout=20)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert count(worker, "epoch") == 1


def test_an_older_epoch_is_logged_and_counted(worker, signer, caplog):
    get_plan(worker, operator(signer), epoch=2)
    with pytest.raises(grpc.RpcError) as refused, caplog.at_level(logging.WARNING, "ballast_worker"):
        get_plan(worker, operator(signer), epoch=1)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "epoch 1 is over: this worker has seen 2" in caplog.text
    assert count(worker, "epoch") == 1


def test_a_new_authority_is_announced_then_used_while_a_stream_goes_on(worker, signer, directory):
    """The stream says when the announcement has arrived; nothing is restarted and no message is lost."""
    new = Signer.new(moment())
    both = certificate_of(signer) + certificate_of(new)
    with connect(worker.process.control_port, operator(signer)) as channel:
        stream = iter(control_pb2_grpc.ControlStub(channel).Watch(pb.WatchRequest(epoch=1)))

        def trusted() -> str:
            return next(m.heartbeat.authorities for m in stream if m.heartbeat.authorities)

        first = trusted()
        refusal(worker, operator(new, trusts=both))
        mount(files(signer, names.TLS_WORKER_NAME, trusts=both), directory)
        assert trusted() != first
        get_plan(worker, operator(new, trusts=both))
        get_plan(worker, operator(signer))
        mount(files(new, names.TLS_WORKER_NAME, trusts=both), directory)
        get_plan(worker, operator(new))
        mount(files(new, names.TLS_WORKER_NAME), directory)
        assert trusted()
        refusal(worker, {**operator(signer), "ca.crt": certificate_of(new)})
        assert next(stream).instance_id == worker.worker.feed.instance_id


def test_damaged_certificates_leave_the_ones_before_in_force(worker, signer, directory, caplog):
    mount({"ca.crt": b"?", "tls.crt": b"?", "tls.key": b"?"}, directory)
    get_plan(worker, operator(signer))
    get_plan(worker, operator(signer))
    assert caplog.text.count("the ones before stay in force") == 1


def test_a_directory_without_certificates_is_named(tmp_path):
    with pytest.raises(OSError, match=r"control.tlsDirectory '.*nowhere': no usable ca.crt, tls.crt and tls.key"):
        Certificates(tmp_path / "nowhere")


def test_a_temporary_directory_too_deep_for_a_socket_is_named(config_for, directory, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match=rf"unix:{deep}/control-.* cannot be listened on"):
        WorkerProcess(config_for(managed=True, control={"tls_directory": str(directory)}))
    assert list(deep.iterdir()) == []


def test_without_certificates_the_service_listens_on_loopback_only(config_for, start):
    worker = start(config_for(managed=True, serving={"host": "0.0.0.0"}))
    worker.control.GetPlan(pb.GetPlanRequest(), timeout=20)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", worker.process.control_port), timeout=5)


def test_each_cause_is_logged_once_in_ten_seconds_and_counted_each_time(caplog):
    now = [0.0]
    refusals = Refusals(clock=lambda: now[0])
    for seconds in (0.0, 9.0, 11.0):
        now[0] = seconds
        refusals.note(Refused.NAME, peer="10.0.0.1", cause="x")
    assert refusals.counts() == {"handshake": 0, "name": 3, "epoch": 0}
    assert len(caplog.records) == 2
