# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS of the control service: the operator's name, whatever the address, and certificates that are replaced."""

from __future__ import annotations

import shutil
import subprocess

import grpc
import pytest
from helpers.running_worker import Running

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc


def openssl(*arguments, cwd):
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory):
        directory.mkdir()
        self.directory = directory
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.crt"),
            cwd=directory,
        )

    def issue(self, name, target):
        """Write ca.crt, tls.crt and tls.key for a DNS name."""
        target.mkdir(exist_ok=True)
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(target / "tls.key"), "-out", "request.pem"),
            cwd=self.directory,
        )
        (self.directory / "ext").write_text(f"subjectAltName=DNS:{name}\n")
        openssl(
            *(
                "x509",
                "-req",
                "-in",
                "request.pem",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
            ),
            *("-extfile", "ext", "-out", str(target / "tls.crt")),
            cwd=self.directory,
        )
        shutil.copy(self.directory / "ca.crt", target / "ca.crt")
        return target


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


@pytest.fixture
def worker(config_for, start, authority, tmp_path) -> Running:
    authority.issue(names.TLS_WORKER_NAME, tmp_path / "worker-tls")
    return start(config_for(managed=True, control={"tls_directory": str(tmp_path / "worker-tls")}))


def connect(worker, directory):
    """A client with the certificate in a directory; it checks the worker's name and not its address."""
    read = {name: (directory / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")}
    credentials = grpc.ssl_channel_credentials(read["ca.crt"], read["tls.key"], read["tls.crt"])
    options = (("grpc.ssl_target_name_override", names.TLS_WORKER_NAME), ("grpc.use_local_subchannel_pool", 1))
    return grpc.secure_channel(f"127.0.0.1:{worker.process.control_port}", credentials, options)


def get_plan(channel):
    with channel:
        return control_pb2_grpc.ControlStub(channel).GetPlan(pb.GetPlanRequest(), timeout=20)


def test_the_operator_is_heard(worker, authority, tmp_path):
    directory = authority.issue(names.TLS_OPERATOR_NAME, tmp_path / "operator")
    get_plan(connect(worker, directory))
    with connect(worker, directory) as channel:
        stream = control_pb2_grpc.ControlStub(channel).Watch(pb.WatchRequest(epoch=1))
        assert next(iter(stream)).WhichOneof("event") == "full"
        stream.cancel()


def test_a_client_of_another_name_is_refused(worker, authority, tmp_path):
    directory = authority.issue("someone.else", tmp_path / "other")
    with pytest.raises(grpc.RpcError) as refused:
        get_plan(connect(worker, directory))
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert names.TLS_OPERATOR_NAME in refused.value.details()
    with connect(worker, directory) as channel, pytest.raises(grpc.RpcError) as refused:
        next(iter(control_pb2_grpc.ControlStub(channel).Watch(pb.WatchRequest(), timeout=20)))
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_client_of_another_authority_is_refused(worker, tmp_path):
    other = Authority(tmp_path / "other-ca")
    directory = other.issue(names.TLS_OPERATOR_NAME, tmp_path / "operator")
    shutil.copy(tmp_path / "ca" / "ca.crt", directory / "ca.crt")
    with pytest.raises(grpc.RpcError) as refused:
        get_plan(connect(worker, directory))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_plain_text_is_not_heard(worker):
    with pytest.raises(grpc.RpcError):
        worker.control.GetPlan(pb.GetPlanRequest(), timeout=20)


def test_replaced_certificates_are_used_without_a_restart(worker, tmp_path):
    new = Authority(tmp_path / "new-ca")
    new.issue(names.TLS_WORKER_NAME, tmp_path / "worker-tls")
    get_plan(connect(worker, new.issue(names.TLS_OPERATOR_NAME, tmp_path / "operator")))
