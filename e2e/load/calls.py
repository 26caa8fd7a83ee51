# SPDX-License-Identifier: Apache-2.0
"""One call over a connection that is kept: HTTP/1.1 or gRPC, with what was sent told apart from what was not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import grpc
import grpc.aio
import numpy as np

from ballast_contract.names import GRPC_PORT, HTTP_PORT, OIP_SERVICE
from ballast_contract.v1 import inference_pb2 as pb

_CONNECT_AGAIN_SECONDS = 0.05
_CONNECT_SECONDS = 2.0


class CallError(Exception):
    """A call that failed: the answer was no result, or the connection was lost before it came."""


class Lost(CallError):  # noqa: N818 - what became of the call
    """The request was sent, and its connection was lost before an answer came."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model at an address.

    Attributes:
        host: address of a Service.
        model: the name by which it is called; it takes rows of numbers as `x`, and answers with one output.
    """

    host: str
    model: str


class Caller(Protocol):
    """Calls one target, again and again. Connecting is tried until the caller's patience ends: nothing was sent yet."""

    async def call(self, row: Sequence[float]) -> list[float]:
        """The model's answer to one row. Raises CallError, or Lost."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class HttpCaller:
    """Implements `Caller` over HTTP/1.1, with as many connections as there are calls at one time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, row: Sequence[float]) -> list[float]:
        """See `Caller.call`."""
        reader, writer = await self._connection()
        keep = False
        try:
            try:
                writer.write(self._request(row))
                await writer.drain()
                status, keep, body = await _answer(reader)
            except (OSError, EOFError) as error:
                raise Lost(f"the connection was lost: {error or type(error).__name__}") from error
            if status != 200:
                raise CallError(f"{status}: {body.decode(errors='replace')}")
            found: list[float] = json.loads(body)["outputs"][0]["data"]
            return found
        finally:
            if keep:
                self._idle.append((reader, writer))
            else:
                await _close(writer)

    async def close(self) -> None:
        """See `Caller.close`."""
        while self._idle:
            await _close(self._idle.pop()[1])

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            await _close(writer)
        while True:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(self._target.host, HTTP_PORT)
            except (OSError, TimeoutError):
                await asyncio.sleep(_CONNECT_AGAIN_SECONDS)

    def _request(self, row: Sequence[float]) -> bytes:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": list(row)}
        body = json.dumps({"inputs": [tensor]}).encode()
        path = f"/v2/models/{quote(self._target.model, safe='')}/infer"
        return f"POST {path} HTTP/1.1\r\nHost: load\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Status, whether the connection stays open, and the body, whose length is always given."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(status.split()[1]), headers.get("connection") != "close", body


class GrpcCaller:
    """Implements `Caller` over gRPC, with one channel of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.min_reconnect_backoff_ms", round(1000 * _CONNECT_SECONDS)),
        ]
        self._channel = grpc.aio.insecure_channel(f"{target.host}:{GRPC_PORT}", options=options)
        self._infer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{OIP_SERVICE}/ModelInfer"
        )

    async def call(self, row: Sequence[float]) -> list[float]:
        """See `Caller.call`."""
        tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, len(row)])
        raw = np.asarray(row, np.float32).tobytes()
        request = pb.ModelInferRequest(model_name=self._target.model, inputs=[tensor], raw_input_contents=[raw])
        try:
            data = await self._infer(request.SerializeToString(), wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            said = any(key == "retry-after" for key, _ in error.trailing_metadata() or ())
            kind = Lost if error.code() is grpc.StatusCode.UNAVAILABLE and not said else CallError
            raise kind(f"{error.code().name}: {error.details()}") from error
        answer = pb.ModelInferResponse.FromString(data)
        return [float(value) for value in np.frombuffer(answer.raw_output_contents[0], np.float32)]

    async def close(self) -> None:
        """See `Caller.close`."""
        await self._channel.close()
