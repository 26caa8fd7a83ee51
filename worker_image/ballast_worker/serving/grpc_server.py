# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over gRPC: generic handlers on raw bytes, on the event loop that HTTP uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from ballast_contract.names import FORWARDED_HEADER, OIP_SERVICE
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import grpc_codec, metadata, wire
from ballast_worker.serving.call import Outcome
from ballast_worker.serving.catalog import Elsewhere, Here
from ballast_worker.serving.metadata import VERSION
from ballast_worker.serving.service import Service
from ballast_worker.serving.signature import RequestError
from ballast_worker.serving.status import grpc_status, retry_after

Context = grpc.aio.ServicerContext[bytes, bytes]
Behaviour = Callable[[bytes, Context], Awaitable[bytes]]

RETRY_AFTER: Final = "retry-after"
"""Trailing metadata: whole seconds until another try makes sense."""


class GrpcServer(grpc.GenericRpcHandler):
    """Answers calls from a `Service`. Belongs to the event loop."""

    def __init__(self, service: Service, *, max_message_bytes: int) -> None:
        self._service = service
        self._server = grpc.aio.server(
            handlers=(self,),
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
        )
        behaviours: dict[str, Behaviour] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
        }
        self._handlers: dict[str, Any] = {
            f"/{OIP_SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(behaviour)
            for name, behaviour in behaviours.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.GenericRpcHandler`."""
        return self._handlers.get(handler_call_details.method)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the port cannot be had.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}: {error}") from error
        await self._server.start()
        return bound

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, let those under way end within the grace."""
        await self._server.stop(grace_seconds)

    async def _live(self, message: bytes, context: Context) -> bytes:
        del message, context
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def _ready(self, message: bytes, context: Context) -> bytes:
        del message, context
        return pb.ServerReadyResponse(ready=self._service.catalog.ready()).SerializeToString()

    async def _server_metadata(self, message: bytes, context: Context) -> bytes:
        del message, context
        return pb.ServerMetadataResponse(**metadata.server()).SerializeToString()

    async def _model_ready(self, message: bytes, context: Context) -> bytes:
        model, found = await self._find(message, context)
        if isinstance(found, Elsewhere):
            raise NotImplementedError
        del model
        return pb.ModelReadyResponse(ready=found.refusal is None).SerializeToString()

    async def _model_metadata(self, message: bytes, context: Context) -> bytes:
        model, found = await self._find(message, context)
        if isinstance(found, Elsewhere):
            raise NotImplementedError
        described = metadata.model(model, self._service.signature(model, found.manifest))
        return pb.ModelMetadataResponse(**described).SerializeToString()

    async def _infer(self, message: bytes, context: Context) -> bytes:
        model, found = await self._find(message, context)
        if isinstance(found, Elsewhere):
            raise NotImplementedError
        if found.refusal is not None:
            await _refuse(context, found.refusal)
        try:
            request = grpc_codec.decode(self._service.signature(model, found.manifest), message)
        except RequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def receive(outcome: Outcome) -> None:
            if not future.done():  # the client has gone
                future.set_result(outcome)

        self._service.submit(model, request, receive, remaining=context.time_remaining())
        outcome = await future
        if isinstance(outcome, Refusal):
            await _refuse(context, outcome)
        return grpc_codec.encode(model, VERSION, request, outcome)

    async def _find(self, message: bytes, context: Context) -> tuple[str, Here | Elsewhere]:
        try:
            model = wire.first_text(message, grpc_codec.MODEL_NAME)
            version = wire.first_text(message, grpc_codec.MODEL_VERSION)
        except wire.WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is damaged: {error}")
        forwarded = any(key == FORWARDED_HEADER for key, _ in context.invocation_metadata() or ())
        found = self._service.find(model, version, forwarded=forwarded)
        if isinstance(found, Refusal):
            await _refuse(context, found)
        return model, found


async def _refuse(context: Context, refusal: Refusal) -> NoReturn:
    seconds = retry_after(refusal)
    trailing = () if seconds is None else ((RETRY_AFTER, seconds),)
    await context.abort(grpc_status(refusal), refusal.message, trailing)
