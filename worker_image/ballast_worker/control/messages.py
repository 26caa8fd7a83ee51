# SPDX-License-Identifier: Apache-2.0
"""Messages of the control service that cannot be read: the caller's fault, told to the caller, and no trace in our log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError


class ReadableMessages(grpc.ServerInterceptor):
    """Refuses what is no message of a method with INVALID_ARGUMENT, before the method is called."""

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.ServerInterceptor`."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(
            _checked(handler.unary_stream or handler.unary_unary),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def lenient(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as error:
            return error

    return lenient


def _checked(behaviour: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def checked(request: Any, context: grpc.ServicerContext) -> Any:
        if isinstance(request, DecodeError):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be read: {request}")
        return behaviour(request, context)

    return checked
