# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over HTTP: what each path answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Final

from ballast_contract.names import FORWARDED_HEADER
from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import http_codec, http_replies, metadata, routes
from ballast_worker.serving.bodies import RETRY_SECONDS, BodiesFullError
from ballast_worker.serving.call import Outcome
from ballast_worker.serving.catalog import Here
from ballast_worker.serving.content_coding import ContentCodingError, inflate, is_plain
from ballast_worker.serving.forwarded import Forwarded
from ballast_worker.serving.http_exchange import Exchange
from ballast_worker.serving.http_message import HttpRequest
from ballast_worker.serving.http_passing import HttpPassing
from ballast_worker.serving.http_replies import fail, refuse
from ballast_worker.serving.routes import Operation, Route
from ballast_worker.serving.service import Service
from ballast_worker.serving.shown import shown
from ballast_worker.serving.tensors import RequestError

_log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[None, None, None]]
"""Begun by its task: one that is cancelled before it runs leaves no coroutine behind that was never awaited."""

_FORWARDED: Final = FORWARDED_HEADER.encode()


class HttpHandler:
    """Answers requests from a `Service`. Belongs to the event loop."""

    def __init__(self, service: Service, forwarded: Forwarded, *, max_body_bytes: int, timeout_seconds: float) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._passing = HttpPassing(service, forwarded, timeout_seconds=timeout_seconds)
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """See `Handler.close`: connections to other workers."""
        self._passing.close()

    def wants_whole(self, request: HttpRequest) -> bool:
        """See `Handler.wants_whole`: what is executed here. Everything else is passed on, or answered from its head."""
        with contextlib.suppress(Exception):  # a fault of ours is met again, and answered, when the request is handled
            route = routes.parse(request.target)
            if route is not None and route.operation is Operation.INFER and request.method in route.methods:
                found = self._service.find(route.model, route.version, forwarded=_FORWARDED in request.headers)
                return isinstance(found, Here)
        return False

    def handle(self, exchange: Exchange) -> None:
        """See `Handler.handle`."""
        with _seen_through(exchange):
            self._route(exchange)

    def _route(self, exchange: Exchange) -> None:
        request = exchange.request
        route = routes.parse(request.target)
        if route is None:
            fail(
                exchange,
                404,
                f"there is nothing at {request.target.decode('latin-1')}; models are under /v2/models/NAME",
            )
        elif request.method not in route.methods:
            allowed = b", ".join(route.methods).decode()
            fail(exchange, 405, f"{route.operation.value} is asked for with {allowed}", headers=[f"Allow: {allowed}"])
        else:
            self._dispatch(exchange, route)

    def _dispatch(self, exchange: Exchange, route: Route) -> None:
        match route.operation:
            case Operation.LIVE:
                exchange.respond_json(200, {"live": True})
            case Operation.READY:
                ready = self._service.catalog.ready()
                exchange.respond_json(200 if ready else 503, {"ready": ready})
            case Operation.SERVER_METADATA:
                exchange.respond_json(200, metadata.server())
            case _:
                self._model(exchange, route)

    def _model(self, exchange: Exchange, route: Route) -> None:
        forwarded = _FORWARDED in exchange.request.headers
        found = self._service.find(route.model, route.version, forwarded=forwarded)
        if isinstance(found, Here):
            self._here(exchange, route, found)
        elif isinstance(found, Refusal) and (forwarded or route.operation is not Operation.INFER):
            refuse(exchange, found)
        else:
            self._spawn(exchange, partial(self._seek, exchange, route))

    def _here(self, exchange: Exchange, route: Route, found: Here) -> None:
        if route.operation is Operation.MODEL_METADATA:
            signature = self._service.signature(route.model, found.manifest)
            exchange.respond_json(200, metadata.model(route.model, signature))
        elif route.operation is Operation.MODEL_READY:
            exchange.respond_json(200, {"name": route.model, "ready": True})
        elif exchange.stream is not None:
            self._spawn(exchange, partial(self._gather, exchange))
        else:
            coding = exchange.request.headers.get(b"content-encoding", b"")
            if is_plain(coding):
                self._infer(exchange, route, found, exchange.request.body)
            else:
                self._spawn(exchange, partial(self._inflate, exchange, route, found, coding))

    def _spawn(self, exchange: Exchange, work: Work) -> None:
        exchange.task = task = asyncio.get_running_loop().create_task(_see_through(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _gather(self, exchange: Exchange) -> None:
        """Read a body to its end for a model that has come here in the meantime."""
        await exchange.gather()
        self._route(exchange)

    def _infer(self, exchange: Exchange, route: Route, here: Here, body: bytes) -> None:
        model = route.model
        signature = self._service.signature(model, here.manifest)
        try:
            length = _header_length(exchange.request.headers.get(b"inference-header-content-length"))
            request = http_codec.decode(signature, body, length)
        except RequestError as error:
            fail(exchange, 400, str(error))
            return

        def receive(outcome: Outcome) -> None:
            with _seen_through(exchange):
                if isinstance(outcome, Refusal):
                    self._refused(exchange, route, outcome)
                else:
                    http_replies.answer(exchange, model, request, outcome)

        self._service.submit(model, request, receive)

    def _refused(self, exchange: Exchange, route: Route, refusal: Refusal) -> None:
        """Answer with a refusal of the engine; a model that has just left this worker is asked for where it is now."""
        forwarded = _FORWARDED in exchange.request.headers
        if refusal.reason is not Reason.NOT_REQUESTED or forwarded:
            refuse(exchange, refusal)
            return
        self._spawn(exchange, partial(self._seek, exchange, route, left=True))

    async def _seek(self, exchange: Exchange, route: Route, *, left: bool = False) -> None:
        here = await self._passing.answer(exchange, route, left=left)
        if here is not None:
            self._here(exchange, route, here)

    async def _inflate(self, exchange: Exchange, route: Route, here: Here, coding: bytes) -> None:
        """Undo the content coding of a body on a thread, so that the loop goes on."""
        try:
            body = await asyncio.to_thread(
                inflate, exchange.request.body, coding, self._max_body_bytes, exchange.request.share.take
            )
        except ContentCodingError as error:
            fail(exchange, error.status, str(error))
        except BodiesFullError as error:
            fail(exchange, 503, str(error), headers=[f"Retry-After: {RETRY_SECONDS}"])
        else:
            self._infer(exchange, route, here, body)


async def _see_through(exchange: Exchange, work: Work) -> None:
    with _seen_through(exchange):
        await work()


@contextlib.contextmanager
def _seen_through(exchange: Exchange) -> Iterator[None]:
    """A fault of ours is an answer too, and not a client that waits for ever or loses its connection."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, the client waits
        _log.exception("a request for %s could not be answered", exchange.request.target.decode("latin-1"))
        if exchange.take_back():
            fail(exchange, 500, "the worker failed to answer this request; its log has the reason")


def _header_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > http_codec.DIGITS:
        raise RequestError(
            f"Inference-Header-Content-Length is {shown(value.decode('latin-1'))}: it is a number of bytes"
        )
    return int(value)
