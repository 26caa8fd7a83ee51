# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over HTTP: what each path answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from typing import Final

from ballast_contract.names import FORWARDED_HEADER
from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import http_codec, metadata, routes
from ballast_worker.serving.call import Array, Outcome
from ballast_worker.serving.catalog import Elsewhere, Here
from ballast_worker.serving.content_coding import ContentCodingError, inflate, is_plain
from ballast_worker.serving.forward_http import Answer, HttpForwarder
from ballast_worker.serving.http_connection import Exchange, HttpConnection
from ballast_worker.serving.metadata import VERSION
from ballast_worker.serving.routes import Operation, Route
from ballast_worker.serving.service import Service, forward_timeout
from ballast_worker.serving.signature import Request
from ballast_worker.serving.status import http_status, retry_after
from ballast_worker.serving.tensors import RequestError

_log = logging.getLogger(__name__)

_FORWARDED: Final = FORWARDED_HEADER.encode()
_SWEEP_SECONDS: Final = 5.0


class HttpServer:
    """Answers requests from a `Service`. Belongs to the event loop."""

    def __init__(self, service: Service, *, max_body_bytes: int, timeout_seconds: float) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._timeout_seconds = timeout_seconds
        self._connections: set[HttpConnection] = set()
        self._retired = False
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._forwarder = HttpForwarder(timeout_seconds=timeout_seconds)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the port cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=1024)
        self._sweeper = loop.create_task(self._sweep())
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def retire(self) -> None:
        """Tell every client, with its next answer, to go elsewhere; everything is answered as before."""
        self._retired = True
        for connection in list(self._connections):
            connection.retire()

    @property
    def deserted(self) -> bool:
        """No client is there that could be calling now."""
        now = time.monotonic()
        return all(connection.deserted(now) for connection in self._connections)

    async def stop(self, grace_seconds: float) -> None:
        """Take no new connections, let answers under way leave within the grace, then close."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._all_closed.wait()
        for connection in list(self._connections):
            connection.abort()
        self._forwarder.close()
        await self._server.wait_closed()

    def _connect(self) -> HttpConnection:
        connection = HttpConnection(self._handle, self._disconnect, max_body_bytes=self._max_body_bytes)
        if self._retired:
            connection.retire()
        self._connections.add(connection)
        self._all_closed.clear()
        return connection

    def _disconnect(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._timeout_seconds))
            now = time.monotonic()
            for connection in list(self._connections):
                if connection.stalled(now, self._timeout_seconds):
                    connection.time_out()

    def _handle(self, exchange: Exchange) -> None:
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
            self._spawn(exchange, self._seek(exchange, route))

    def _here(self, exchange: Exchange, route: Route, found: Here) -> None:
        if route.operation is Operation.MODEL_METADATA:
            signature = self._service.signature(route.model, found.manifest)
            exchange.respond_json(200, metadata.model(route.model, signature))
        elif found.refusal is not None:
            refuse(exchange, found.refusal)
        elif route.operation is Operation.MODEL_READY:
            exchange.respond_json(200, {"name": route.model, "ready": True})
        else:
            coding = exchange.request.headers.get(b"content-encoding", b"")
            if is_plain(coding):
                self._infer(exchange, route, found, exchange.request.body)
            else:
                self._spawn(exchange, self._inflate(exchange, route, found, coding))

    def _spawn(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(_see_through(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                    _answer(exchange, model, request, outcome)

        self._service.submit(model, request, receive)

    def _refused(self, exchange: Exchange, route: Route, refusal: Refusal) -> None:
        """Answer with a refusal of the engine; a model that has just left this worker is asked for where it is now."""
        forwarded = _FORWARDED in exchange.request.headers
        if refusal.reason is not Reason.NOT_REQUESTED or forwarded:
            refuse(exchange, refusal)
            return
        self._spawn(exchange, self._seek(exchange, route, left=True))

    async def _seek(self, exchange: Exchange, route: Route, *, left: bool = False) -> None:
        def ask(found: Elsewhere) -> Awaitable[Answer | None]:
            return self._forwarder.forward(found.endpoints, exchange.request)

        try:
            outcome = await self._service.seek(
                route.model, route.version, ask, wait=route.operation is Operation.INFER, left=left
            )
        except TimeoutError:
            refuse(exchange, forward_timeout(route.model, self._timeout_seconds))
            return
        match outcome:
            case Here():
                self._here(exchange, route, outcome)
            case Refusal():
                refuse(exchange, outcome)
            case Answer():
                exchange.respond(
                    outcome.status, outcome.body, content_type=outcome.content_type, headers=outcome.passed_headers
                )

    async def _inflate(self, exchange: Exchange, route: Route, here: Here, coding: bytes) -> None:
        """Undo the content coding of a body on a thread, so that the loop goes on."""
        try:
            body = await asyncio.to_thread(inflate, exchange.request.body, coding, self._max_body_bytes)
        except ContentCodingError as error:
            fail(exchange, error.status, str(error))
        else:
            self._infer(exchange, route, here, body)


async def _see_through(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    with _seen_through(exchange):
        await work


@contextlib.contextmanager
def _seen_through(exchange: Exchange) -> Iterator[None]:
    """A fault of ours is an answer too, and not a client that waits for ever or loses its connection."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, the client waits
        _log.exception("a request for %s could not be answered", exchange.request.target.decode("latin-1"))
        if exchange.answer is None:
            fail(exchange, 500, "the worker failed to answer this request; its log has the reason")


def fail(exchange: Exchange, status: int, message: str, *, headers: Sequence[str] = ()) -> None:
    """Answer with an error."""
    exchange.respond_json(status, {"error": message}, headers=headers)


def refuse(exchange: Exchange, refusal: Refusal) -> None:
    """Answer with a refusal."""
    seconds = retry_after(refusal)
    fail(
        exchange, http_status(refusal), refusal.message, headers=[] if seconds is None else [f"Retry-After: {seconds}"]
    )


def _answer(exchange: Exchange, model: str, request: Request, outputs: Sequence[Array]) -> None:
    pieces, header_length = http_codec.encode(model, VERSION, request, outputs)
    if header_length is None:
        exchange.respond(200, pieces)
    else:
        exchange.respond(
            200,
            pieces,
            content_type="application/octet-stream",
            headers=[f"Inference-Header-Content-Length: {header_length}"],
        )


def _header_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit():
        raise RequestError(f"Inference-Header-Content-Length is {value.decode('latin-1')!r}: it is a number of bytes")
    return int(value)
