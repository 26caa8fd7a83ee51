# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of the control service and where it listens: behind mutual TLS, or on loopback."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from ballast_contract.config import WorkerConfig
from ballast_worker.control.certificates import Certificates
from ballast_worker.control.front import TlsFront
from ballast_worker.control.messages import ReadableMessages
from ballast_worker.control.refusals import Refusals
from ballast_worker.control.service import MAX_WATCHERS, ControlService, add_to
from ballast_worker.control.settings import SettingError

_CALLS: Final = 8


class ControlServer:
    """Listens from construction on; the worker answers before its device is touched.

    With certificates only the operator is heard. Without them the server listens on loopback only: plain text never
    leaves the worker.

    Raises:
        SettingError: the port cannot be had, or the path of the temporary directory is too long for a socket.
    """

    def __init__(
        self, config: WorkerConfig, service: ControlService, certificates: Certificates | None, refusals: Refusals
    ) -> None:
        self._pool = ThreadPoolExecutor(_CALLS + MAX_WATCHERS, thread_name_prefix="control")
        self._server = grpc.server(
            self._pool,
            interceptors=[ReadableMessages()],
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
        self._front = contextlib.ExitStack()
        if certificates is None:
            self.port = self._listen(f"127.0.0.1:{config.serving.control_port}")
            self._server.start()
            return
        with contextlib.ExitStack() as undo:
            listening = _bound(config.serving.host, config.serving.control_port)
            undo.callback(listening.close)
            # Short, since a UNIX socket's path may have 107 characters at most, and only this user may enter it.
            backend = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="control-"))) / "grpc"
            self._listen(f"unix:{backend}")
            self._server.start()
            self.port = int(listening.getsockname()[1])
            undo.callback(TlsFront(listening, certificates, refusals, backend=backend).stop)
            self._front = undo.pop_all()

    def stop(self, *, grace_seconds: float) -> None:
        """Take no new calls, let running ones end within the grace; returns when all have ended or were cancelled."""
        self._server.stop(grace_seconds).wait()
        self._front.close()
        # A cancelled call's thread may wait on, for a file system that hangs: it must not hold up the end.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _listen(self, address: str) -> int:
        try:
            return int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise SettingError(f"serving.controlPort: {address} cannot be listened on: {error}") from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
    except OSError as error:
        raise SettingError(f"serving.controlPort: {host}:{port} cannot be listened on: {error.strerror}") from error
