# SPDX-License-Identifier: Apache-2.0
"""How a connection to a worker's control service is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from ballast_contract import names
from ballast_operator.fleet.authority import Identity


@dataclass(frozen=True, slots=True)
class Member:
    """A worker pod that can be dialled: the pod, its address and the budget it belongs to."""

    namespace: str
    budget: str
    name: str
    uid: str
    host: str
    port: int = names.CONTROL_PORT

    @property
    def address(self) -> str:
        """Host and port; an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Dial = Callable[[Member, Identity], grpc.aio.Channel]

_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),  # a pod that takes over an address never inherits its connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
)


def channel(member: Member, identity: Identity) -> grpc.aio.Channel:
    """Open a connection lazily, with mutual TLS: the worker has to carry the name of workers, whatever its address."""
    credentials = grpc.ssl_channel_credentials(identity.authorities, identity.own.key, identity.own.certificate)
    options = (*_OPTIONS, ("grpc.ssl_target_name_override", names.TLS_WORKER_NAME))
    return grpc.aio.secure_channel(member.address, credentials, options=options)
