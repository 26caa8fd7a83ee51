# SPDX-License-Identifier: Apache-2.0
"""The ports of the protocols from the start on: one that is taken is told before anything is built."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

from ballast_contract.config import Serving
from ballast_worker.control.settings import SettingError


@contextlib.contextmanager
def reserved(config: Serving) -> Iterator[None]:
    """Hold the ports for clients through a block; those that are 0 are only tried.

    Invariant: they are bound with SO_REUSEADDR and not listened on, so that clients are refused until the servers listen there,
    which bind with it too.

    Raises:
        SettingError: there is no such address here, or a port is taken.
    """
    with contextlib.ExitStack() as held:
        for key, port in (("httpPort", config.http_port), ("grpcPort", config.grpc_port)):
            held.enter_context(_bound(config.host, port, f"serving.{key}"))
        yield


def _bound(host: str, port: int, setting: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise _no_address(host, error) from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise _no_address(host, error) from error
        raise SettingError(
            f"{setting} {port} cannot be listened on at {host}: {error.strerror}; free it, or set another one, or 0"
        ) from error
    return bound


def _no_address(host: str, error: OSError) -> SettingError:
    return SettingError(
        f"serving.host '{host}' is no address of this machine: {error.strerror}; 0.0.0.0 stands for all of them"
    )
