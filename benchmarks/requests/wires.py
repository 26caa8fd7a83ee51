# SPDX-License-Identifier: Apache-2.0
"""Three ways in, with requests that are bytes before the first leaves: JSON and raw tensors over HTTP/1.1, and gRPC."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import numpy as np

from ballast_contract.names import OIP_SERVICE
from ballast_contract.v1 import inference_pb2 as pb
from benchmarks.requests.models import WIDTH, Row
from e2e.load.calls import CallError

Call = Callable[[bytes], Awaitable[bytes]]
"""Sends a request and returns the answer's body; one at a time. Raises CallError."""

WORKERS_PER_CHANNEL: Final = 8


class Wire(Protocol):
    """One way to ask."""

    port: str
    """What a server's port for it is called in the server's log."""

    @abstractmethod
    def request(self, model: str, row: Row) -> bytes:
        """All bytes that ask a model for one row, float32 of shape [384]."""

    @abstractmethod
    def answer(self, body: bytes) -> Row:
        """The row in an answer."""

    @abstractmethod
    def connect(self, port: int, workers: int) -> Any:
        """An async context manager that gives one `Call` for each worker, over connections that are kept."""


class _Http(Wire, Protocol):
    port: str = "http_port"

    @asynccontextmanager
    async def connect(self, port: int, workers: int) -> AsyncIterator[list[Call]]:
        """See `Wire.connect`: a connection for each."""
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(_Connection, "127.0.0.1", port) for _ in range(workers)]
        try:
            yield [connection.call for _, connection in made]
        finally:
            for transport, _ in made:
                transport.close()


class _Connection(asyncio.Protocol):
    """One request at a time; its answer's length is always given."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport: Any = transport

    def call(self, request: bytes) -> Awaitable[bytes]:
        """See `Call`."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self._received[:end]).lower()
        length = int(head[head.index(b"\r\ncontent-length:") + 17 :].split(b"\r\n", 1)[0])
        if len(self._received) < end + length:
            return
        body = bytes(self._received[end : end + length])
        del self._received[: end + length]
        status = head[9:12]
        self._end(body if status == b"200" else CallError(f"{status.decode()}: {body.decode(errors='replace')}"))

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._end(CallError(f"the connection was lost: {error}"))

    def _end(self, outcome: bytes | CallError) -> None:
        if self._answer is None or self._answer.done():
            return
        if isinstance(outcome, CallError):
            self._answer.set_exception(outcome)
        else:
            self._answer.set_result(outcome)


def _post(model: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: load", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class HttpJson(_Http):
    """The Open Inference Protocol as JSON, numbers written as clients in Python write them."""

    def request(self, model: str, row: Row) -> bytes:
        """See `Wire.request`."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": row.tolist()}
        return _post(model, json.dumps({"inputs": [tensor]}).encode(), "Content-Type: application/json")

    def answer(self, body: bytes) -> Row:
        """See `Wire.answer`."""
        return np.asarray(json.loads(body)["outputs"][0]["data"], np.float32)


class HttpBinary(_Http):
    """The binary tensor data extension, in both directions."""

    def request(self, model: str, row: Row) -> bytes:
        """See `Wire.request`."""
        size = {"binary_data_size": row.nbytes}
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "parameters": size}
        described = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        return _post(model, described + row.tobytes(), f"Inference-Header-Content-Length: {len(described)}")

    def answer(self, body: bytes) -> Row:
        """See `Wire.answer`."""
        return np.frombuffer(body[-4 * WIDTH :], np.float32)


class Grpc(Wire):
    """gRPC with raw contents, a channel for eight workers."""

    port: str = "grpc_port"

    def request(self, model: str, row: Row) -> bytes:
        """See `Wire.request`."""
        tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, WIDTH])
        request = pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[row.tobytes()])
        return request.SerializeToString()

    def answer(self, body: bytes) -> Row:
        """See `Wire.answer`."""
        return np.frombuffer(pb.ModelInferResponse.FromString(body).raw_output_contents[0], np.float32)

    @asynccontextmanager
    async def connect(self, port: int, workers: int) -> AsyncIterator[list[Call]]:
        """See `Wire.connect`."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        count = -(-workers // WORKERS_PER_CHANNEL)
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(count)]
        try:
            yield [_grpc_call(channels[worker // WORKERS_PER_CHANNEL]) for worker in range(workers)]
        finally:
            for channel in channels:
                await channel.close()


def _grpc_call(channel: grpc.aio.Channel) -> Call:
    infer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{OIP_SERVICE}/ModelInfer")

    async def call(request: bytes) -> bytes:
        try:
            return await infer(request)
        except grpc.aio.AioRpcError as error:
            raise CallError(f"{error.code().name}: {error.details()}") from error

    return call


WIRES: Final[dict[str, Wire]] = {"http_json": HttpJson(), "http_binary": HttpBinary(), "grpc": Grpc()}
