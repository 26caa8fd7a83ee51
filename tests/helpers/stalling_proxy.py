# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy in front of the API server that can fall silent without closing anything, as a broken network does, or cut
all connections and lead to another server.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml


class StallingProxy:
    """Passes bytes both ways while it flows, and holds them while it stalls."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text())
        target = urlsplit(self._config["clusters"][0]["cluster"]["server"])
        self._target = (target.hostname, target.port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.kubeconfig = kubeconfig.with_name("stalling.kubeconfig")

    def stall(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        self._flowing.clear()

    def flow(self) -> None:
        """What was held arrives, and what comes."""
        self._flowing.set()

    def turn(self, port: int) -> None:
        """Cut every connection, and lead new ones to another port of the same machine."""
        self._target = (self._target[0], port)
        for writer in list(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self.kubeconfig.write_text(yaml.safe_dump(self._config))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.flow()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:  # the tasks end by themselves; a cancelled one would be reported as an error
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        await self._flowing.wait()
        back_reader, back_writer = await asyncio.open_connection(*self._target)
        self._writers.add(back_writer)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, back_writer))
                both.create_task(self._pass(back_reader, writer))
        finally:
            for end in (writer, back_writer):
                end.close()
                self._writers.discard(end)
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
