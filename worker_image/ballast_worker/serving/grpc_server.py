# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over gRPC: generic handlers on raw bytes, on the event loop that HTTP uses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ballast_contract.names import FORWARDED_HEADER, OIP_SERVICE
from ballast_contract.reasons import Reason
from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import grpc_codec, metadata
from ballast_worker.serving.bodies import RETRY_SECONDS, Bodies, BodiesFullError, Share
from ballast_worker.serving.call import Outcome
from ballast_worker.serving.catalog import Elsewhere, Here
from ballast_worker.serving.connections import CONNECTION_SECONDS, Calls
from ballast_worker.serving.forward_grpc import GrpcForwarder
from ballast_worker.serving.forwarded import Forwarded, Result
from ballast_worker.serving.metadata import VERSION
from ballast_worker.serving.service import Service, forward_timeout
from ballast_worker.serving.signature import Request
from ballast_worker.serving.status import RETRY_AFTER, grpc_status, retry_after
from ballast_worker.serving.tensors import RequestError

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
Behaviour = Callable[[bytes, Context], Awaitable[bytes]]

_UNDER_WAY_SECONDS: Final = 0.1
"""A client sees its deadline end sooner than its server, by the time that the call was on its way, and then cancels it."""

_Message = TypeVar("_Message", pb.ModelReadyRequest, pb.ModelMetadataRequest)


class GrpcServer(grpc.GenericRpcHandler):
    """Answers calls from a `Service`. Belongs to the event loop."""

    def __init__(
        self,
        service: Service,
        forwarded: Forwarded,
        *,
        bodies: Bodies,
        max_message_bytes: int,
        timeout_seconds: float,
    ) -> None:
        self._service = service
        self._forwarded = forwarded
        self._bodies = bodies
        self._timeout_seconds = timeout_seconds
        self._forwarder = GrpcForwarder()
        self._calls = Calls(clock=time.monotonic)
        self._server = grpc.aio.server(
            handlers=(self,),
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # GOAWAY while calls are still taken: a call that comes once a server stops is not answered but cancelled.
                ("grpc.max_connection_age_ms", round(1000 * CONNECTION_SECONDS)),
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
            f"/{OIP_SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(self._counted(behaviour))
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

    @property
    def deserted(self) -> bool:
        """No client is there that could be calling now."""
        return self._calls.deserted

    def _counted(self, behaviour: Behaviour) -> Behaviour:
        async def run(message: bytes, context: Context) -> bytes:
            with self._calls.call(context.peer()):
                try:
                    return await behaviour(message, context)
                except grpc.aio.BaseError:  # it was aborted, or its client has left
                    raise
                except Exception:  # noqa: BLE001 - whatever it is, the client gets words of ours
                    _log.exception("a gRPC call could not be answered")
                    await context.abort(
                        grpc.StatusCode.INTERNAL, "the worker failed to answer this call; its log has the reason"
                    )

        return run

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, let those under way end within the grace."""
        await self._server.stop(grace_seconds)
        await self._forwarder.close()

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
        request = await _parse(pb.ModelReadyRequest, message, context)
        found: Here | Elsewhere | Refusal | bytes
        found = self._service.find(request.name, request.version, forwarded=_forwarded(context))
        if isinstance(found, Elsewhere):
            found = await self._seek("ModelReady", request.name, request.version, message, context)
        if isinstance(found, bytes):
            return found
        if isinstance(found, Refusal) and found.reason is Reason.NOT_REQUESTED:
            await _refuse(context, found)
        return pb.ModelReadyResponse(ready=isinstance(found, Here)).SerializeToString()

    async def _model_metadata(self, message: bytes, context: Context) -> bytes:
        request = await _parse(pb.ModelMetadataRequest, message, context)
        found = await self._find("ModelMetadata", request.name, request.version, message, context)
        if isinstance(found, bytes):
            return found
        described = metadata.model(request.name, self._service.signature(request.name, found.manifest))
        return pb.ModelMetadataResponse(**described).SerializeToString()

    async def _infer(self, message: bytes, context: Context) -> bytes:
        share = Share(self._bodies)
        try:
            share.take(len(message))
        except BodiesFullError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error), ((RETRY_AFTER, str(RETRY_SECONDS)),))
        try:
            head, raw = grpc_codec.parse(message)
        except RequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        model = head.model_name
        found = await self._find("ModelInfer", model, head.model_version, message, context)
        while isinstance(found, Here):
            try:
                request = grpc_codec.decode(self._service.signature(model, found.manifest), head, raw)
            except RequestError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            outcome = await self._execute(model, request, context, share)
            if not isinstance(outcome, Refusal):
                return grpc_codec.encode(model, VERSION, request, outcome)
            if outcome.reason is not Reason.NOT_REQUESTED or _forwarded(context):
                await _refuse(context, outcome)
            # The model has just left this worker: it is asked for where it is now.
            sought = await self._seek("ModelInfer", model, head.model_version, message, context, left=True)
            found = await _unless_refused(context, sought)
        return found

    async def _execute(self, model: str, request: Request, context: Context, share: Share) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        # The call keeps the message when the client has gone, and so its share.
        receive = partial(_receive, future, share)
        self._service.submit(model, request, receive, remaining=context.time_remaining())
        return await future

    async def _find(self, method: str, model: str, version: str, message: bytes, context: Context) -> Here | bytes:
        """Where the model is on this worker, or the answer of another one; refuses the call when there is neither."""
        forwarded = _forwarded(context)
        found = self._service.find(model, version, forwarded=forwarded)
        if isinstance(found, Here) or (forwarded and isinstance(found, Refusal)):
            return await _unless_refused(context, found)
        return await _unless_refused(context, await self._seek(method, model, version, message, context))

    async def _seek(
        self, method: str, model: str, version: str, message: bytes, context: Context, *, left: bool = False
    ) -> Here | Refusal | bytes:
        remaining = context.time_remaining()
        seconds = self._timeout_seconds if remaining is None else remaining

        try:
            return await self._service.seek(
                model,
                version,
                lambda found: self._pass_on(found, method, message, context),
                wait=method == "ModelInfer",
                left=left,
                remaining=remaining,
            )
        except TimeoutError:
            return forward_timeout(model, seconds)
        except grpc.aio.AioRpcError as error:
            trailing = tuple((key, value) for key, value in error.trailing_metadata() if key == RETRY_AFTER)
            await context.abort(error.code(), error.details() or "", trailing)

    async def _pass_on(self, found: Elsewhere, method: str, message: bytes, context: Context) -> bytes | None:
        """See `GrpcForwarder.forward`; counts what becomes of it."""
        remaining = context.time_remaining()
        result: Result | None = None
        answer: bytes | None = None
        try:
            answer = await self._forwarder.forward(
                found.endpoints,
                f"/{OIP_SERVICE}/{method}",
                message,
                timeout_seconds=self._timeout_seconds if remaining is None else remaining,
            )
            result = None if answer is None else Result.ANSWERED
            return answer
        except TimeoutError:
            result = Result.LATE
            raise
        except grpc.aio.AioRpcError:
            result = Result.ANSWERED
            raise
        except asyncio.CancelledError:
            left = context.time_remaining()
            result = Result.LATE if left is not None and left < _UNDER_WAY_SECONDS else Result.LEFT
            raise
        finally:
            if result is not None:
                self._forwarded.count("grpc", result, request=len(message), answer=len(answer or b""))


def _receive(future: asyncio.Future[Outcome], share: Share, outcome: Outcome) -> None:
    del share
    if not future.done():  # the client has gone
        future.set_result(outcome)


def _forwarded(context: Context) -> bool:
    return any(key == FORWARDED_HEADER for key, _ in context.invocation_metadata() or ())


async def _parse(kind: type[_Message], message: bytes, context: Context) -> _Message:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is no {kind.DESCRIPTOR.name}: {error}")


async def _unless_refused(context: Context, found: Here | Refusal | bytes) -> Here | bytes:
    if isinstance(found, Refusal):
        await _refuse(context, found)
    return found


async def _refuse(context: Context, refusal: Refusal) -> NoReturn:
    seconds = retry_after(refusal)
    trailing = () if seconds is None else ((RETRY_AFTER, seconds),)
    await context.abort(grpc_status(refusal), refusal.message, trailing)
