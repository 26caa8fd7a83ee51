# SPDX-License-Identifier: Apache-2.0
"""Passing a gRPC call on to another worker of the pool: one hop, message untouched, channels used again."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import grpc
import grpc.aio

from ballast_contract.names import FORWARDED_HEADER
from ballast_worker.serving.catalog import Endpoint
from ballast_worker.serving.status import RETRY_AFTER

_CHANNELS: Final = 256
_CONNECT_MILLISECONDS: Final = 2000
_PAUSE_MILLISECONDS: Final = (100, 1000)
"""First and longest pause before a worker that was not reached is tried again: it may be back at any moment."""


class GrpcForwarder:
    """Calls to other workers. Belongs to the event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channels: OrderedDict[Endpoint, grpc.aio.Channel] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def forward(
        self, endpoints: Sequence[Endpoint], method: str, message: bytes, *, timeout_seconds: float
    ) -> bytes | None:
        """The answer of the first endpoint that has the model; None when none of them does or can be reached.

        Args:
            endpoints: whom to ask, best first.
            method: the full name of the method.
            message: of the call, serialised.
            timeout_seconds: for all of them together.

        Raises:
            grpc.aio.AioRpcError: what the other worker refused with.
            TimeoutError: the time is over.
        """
        deadline = self._clock() + timeout_seconds
        for endpoint in endpoints:
            left = deadline - self._clock()
            if left <= 0:
                raise TimeoutError
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(endpoint).unary_unary(method)
            try:
                answer: bytes = await call(message, timeout=left, metadata=((FORWARDED_HEADER, "1"),))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._clock() >= deadline:
                    raise TimeoutError from error
                if not _elsewhere(error):
                    raise
            else:
                return answer
        return None

    async def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            channel = grpc.aio.insecure_channel(
                f"{host}:{endpoint.grpc_port}",
                options=[
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.max_send_message_length", -1),
                    ("grpc.min_reconnect_backoff_ms", _CONNECT_MILLISECONDS),
                    ("grpc.initial_reconnect_backoff_ms", _PAUSE_MILLISECONDS[0]),
                    ("grpc.max_reconnect_backoff_ms", _PAUSE_MILLISECONDS[1]),
                ],
            )
            self._channels[endpoint] = channel
        self._channels.move_to_end(endpoint)
        if len(self._channels) > _CHANNELS:
            task = asyncio.get_running_loop().create_task(self._channels.popitem(last=False)[1].close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return channel


def _elsewhere(error: grpc.aio.AioRpcError) -> bool:
    """Whether the next worker is asked: the model is not there any more, or the worker was not reached or is ending.

    Inference changes nothing, so a call whose connection broke may be made again. A refusal of the worker itself says when
    to try again, and goes back to the client.
    """
    refused = any(key == RETRY_AFTER for key, _ in error.trailing_metadata() or ())
    lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return error.code() is grpc.StatusCode.NOT_FOUND or (lost and not refused)
