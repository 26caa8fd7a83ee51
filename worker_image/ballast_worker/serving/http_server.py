# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: it listens, keeps the connections that are open, and ends those that take too long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from ballast_worker.serving.bodies import Bodies
from ballast_worker.serving.http_connection import HttpConnection
from ballast_worker.serving.http_exchange import Handler
from ballast_worker.serving.http_limits import Limits

_SWEEP_SECONDS: Final = 5.0


class HttpServer:
    """Connections for one handler. Belongs to the event loop."""

    def __init__(
        self, handler: Handler, *, limits: Limits, bodies: Bodies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._bodies = bodies
        self._clock = clock
        self._connections: set[HttpConnection] = set()
        self._retired = self._stopping = False
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._server: asyncio.Server | None = None
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
        now = self._clock()
        return all(connection.deserted(now) for connection in self._connections)

    async def stop(self, grace_seconds: float) -> None:
        """Take no new connections, let answers under way leave within the grace, then close."""
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        for connection in list(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._all_closed.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.abort()
        self._handler.close()
        await self._server.wait_closed()

    def _connect(self) -> HttpConnection:
        return HttpConnection(
            self._handler,
            opened=self._opened,
            closed=self._closed,
            limits=self._limits,
            bodies=self._bodies,
            clock=self._clock,
        )

    def _opened(self, connection: HttpConnection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()
        if self._retired:
            connection.retire()
        if self._stopping:
            connection.finish()

    def _closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._limits.request_seconds))
            now = self._clock()
            for connection in list(self._connections):
                connection.sweep(now)
