# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of the control service: addresses, mutual TLS and who is heard."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from ballast_contract import names
from ballast_contract.config import WorkerConfig
from ballast_worker.control.service import MAX_WATCHERS, ControlService, add_to

_log = logging.getLogger(__name__)

_CALLS: Final = 8
_FILES: Final = ("ca.crt", "tls.crt", "tls.key")


class ControlServer:
    """Listens from construction on; the worker answers before its device is touched.

    Without TLS a worker that stands alone listens on loopback only.

    Raises:
        OSError: the port cannot be had, or a certificate cannot be read.
    """

    def __init__(self, config: WorkerConfig, service: ControlService) -> None:
        directory = config.control.tls_directory
        host = config.serving.host if config.managed or directory is not None else "127.0.0.1"
        self._pool = ThreadPoolExecutor(_CALLS + MAX_WATCHERS, thread_name_prefix="control")
        self._server = grpc.server(
            self._pool,
            interceptors=[] if directory is None else [_OperatorOnly()],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", 64 << 20),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        add_to(self._server, service)
        address = f"{host}:{config.serving.control_port}"
        try:
            if directory is None:
                if config.managed:
                    _log.warning(
                        "the control service speaks plain text: whoever reaches port %d may give orders; "
                        "set control.tlsDirectory",
                        config.serving.control_port,
                    )
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(directory))
        except RuntimeError as error:
            raise OSError(f"serving.controlPort: {address} cannot be listened on: {error}") from error
        self._server.start()

    def stop(self, *, grace_seconds: float) -> None:
        """Take no new calls, let running ones end within the grace; returns when all have ended."""
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown()


def _credentials(directory: Path) -> grpc.ServerCredentials:
    """Mutual TLS whose certificates are read again at each connection."""
    held = [_configuration(_read(directory))]

    def fetch() -> grpc.ServerCertificateConfiguration:
        with contextlib.suppress(OSError):  # in the middle of being replaced: the next connection reads again
            held[0] = _configuration(_read(directory))
        return held[0]

    return grpc.dynamic_ssl_server_credentials(held[0], fetch, require_client_authentication=True)


def _read(directory: Path) -> tuple[bytes, ...]:
    return tuple((directory / name).read_bytes() for name in _FILES)


def _configuration(files: tuple[bytes, ...]) -> grpc.ServerCertificateConfiguration:
    authority, certificate, key = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


class _OperatorOnly(grpc.ServerInterceptor):
    """Refuses every client whose certificate does not carry the operator's name."""

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard(handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        _check(context)
        return method(request, context)

    return guarded


def _guard_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        _check(context)
        yield from method(request, context)

    return guarded


def _check(context: grpc.ServicerContext) -> None:
    identities = context.auth_context().get("x509_subject_alternative_name", ())
    if names.TLS_OPERATOR_NAME.encode() not in identities:
        context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"the client's certificate does not carry the name {names.TLS_OPERATOR_NAME}",
        )
