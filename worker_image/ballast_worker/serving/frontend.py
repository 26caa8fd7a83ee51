# SPDX-License-Identifier: Apache-2.0
"""Both protocols on one event loop: the way in for clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import uvloop

from ballast_contract.config import Serving
from ballast_worker.serving.bodies import Bodies
from ballast_worker.serving.call import Engine
from ballast_worker.serving.catalog import Catalog
from ballast_worker.serving.forwarded import Forwarded
from ballast_worker.serving.grpc_server import GrpcServer
from ballast_worker.serving.http_handler import HttpHandler
from ballast_worker.serving.http_limits import Limits
from ballast_worker.serving.http_server import HttpServer
from ballast_worker.serving.mailbox import Mailbox
from ballast_worker.serving.service import PATIENCE_SECONDS, Service

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where it listens, after 0 in the configuration was replaced by what the system gave."""

    http: int
    grpc: int


class Frontend:
    """HTTP and gRPC for one engine and one catalog. Started once.

    Attributes:
        forwarded: what was passed on to other workers.
    """

    def __init__(
        self,
        config: Serving,
        engine: Engine,
        catalog: Catalog,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Make a front end that does not listen yet.

        Args:
            config: addresses and limits.
            engine: gets the calls.
            catalog: says which models there are; asked on the event loop.
            clock: monotonic seconds, the engine's clock.
            patience_seconds: how long a call waits for a model that is on its way.
        """
        self._config = config
        self._engine = engine
        self._catalog = catalog
        self._clock = clock
        self._patience_seconds = patience_seconds
        self.forwarded = Forwarded()
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None

    async def start(self) -> Ports:
        """Listen on both ports.

        Raises:
            OSError: a port cannot be had; the message names its setting.
        """
        config = self._config
        service = Service(
            self._engine,
            self._catalog,
            Mailbox(asyncio.get_running_loop()),
            timeout_seconds=config.request_timeout_seconds,
            clock=self._clock,
            max_waiting=config.max_queue,
            patience_seconds=self._patience_seconds,
        )
        bodies = Bodies(config.max_held_bytes)
        handler = HttpHandler(
            service,
            self.forwarded,
            max_body_bytes=config.max_request_bytes,
            timeout_seconds=config.request_timeout_seconds,
        )
        self._http = HttpServer(handler, limits=Limits.of(config), bodies=bodies, clock=self._clock)
        self._grpc = GrpcServer(
            service,
            self.forwarded,
            bodies=bodies,
            max_message_bytes=config.max_request_bytes,
            timeout_seconds=config.request_timeout_seconds,
        )
        try:
            with _said_of("serving.httpPort", config.http_port):
                http = await self._http.start(config.host, config.http_port)
            with _said_of("serving.grpcPort", config.grpc_port):
                return Ports(http, await self._grpc.start(config.host, config.grpc_port))
        except OSError:
            await self.stop(grace_seconds=0)
            raise

    async def deserted(self) -> bool:
        """Whether no client is there that could be calling now."""
        return self._http is None or self._grpc is None or (self._http.deserted and self._grpc.deserted)

    def retire(self) -> None:
        """Send clients elsewhere, without refusing any."""
        if self._http is not None:
            self._http.retire()

    async def stop(self, *, grace_seconds: float) -> None:
        """Take no new connections, let requests under way end within the grace, then close."""
        if self._http is not None and self._grpc is not None:
            await asyncio.gather(self._http.stop(grace_seconds), self._grpc.stop(grace_seconds))


class FrontendThread:
    """A front end that runs in a thread of its own.

    Attributes:
        ports: where it listens.
    """

    def __init__(
        self, ports: Ports, loop: asyncio.AbstractEventLoop, frontend: Frontend, thread: threading.Thread
    ) -> None:
        self.ports = ports
        self._loop = loop
        self._frontend = frontend
        self._thread = thread

    @property
    def forwarded(self) -> Forwarded:
        """As `Frontend.forwarded`. Any thread."""
        return self._frontend.forwarded

    def deserted(self) -> bool:
        """As `Frontend.deserted`. Any other thread."""
        return asyncio.run_coroutine_threadsafe(self._frontend.deserted(), self._loop).result()

    def retire(self) -> None:
        """As `Frontend.retire`. Any other thread."""
        self._loop.call_soon_threadsafe(self._frontend.retire)

    def stop(self, *, grace_seconds: float) -> None:
        """As `Frontend.stop`; returns when the thread has ended. Any other thread, once."""
        asyncio.run_coroutine_threadsafe(self._frontend.stop(grace_seconds=grace_seconds), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A call over gRPC whose client left while it was answered is nobody's fault."""
    if isinstance(context.get("exception"), grpc.aio.BaseError):
        _log.debug("a client over gRPC has left before its answer: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


def run_in_thread(frontend: Frontend) -> FrontendThread:
    """Run a front end on a uvloop event loop in a new thread; returns when it listens.

    Raises:
        OSError: a port cannot be had.
    """
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_unhandled)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, name="protocols", daemon=True)
    thread.start()
    try:
        ports = asyncio.run_coroutine_threadsafe(frontend.start(), loop).result()
    except BaseException:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        raise
    return FrontendThread(ports, loop, frontend, thread)


@contextlib.contextmanager
def _said_of(setting: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"{setting} {port} cannot be listened on: {error.strerror or error}") from error
