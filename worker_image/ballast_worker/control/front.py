# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS in front of the control service: who connects has to prove to be the operator, and who fails is named.

gRPC's own server tells Python nothing of a handshake that failed, so TLS ends here and the bytes go on to gRPC over a
socket that only this process can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Final

from ballast_contract import names
from ballast_worker.control.certificates import Certificates
from ballast_worker.control.refusals import Refusals, Refused

_HANDSHAKE_SECONDS: Final = 10.0
_CONNECTIONS: Final = 64
_CHUNK: Final = 1 << 16


class TlsFront:
    """Accepts on a bound socket from construction on, in a thread of its own.

    Args:
        listening: the bound and listening socket; closed with the front.
        backend: path of the UNIX socket that the bytes of the operator go on to.
    """

    def __init__(
        self, listening: socket.socket, certificates: Certificates, refusals: Refusals, *, backend: Path
    ) -> None:
        self._listening, self._backend = listening, backend
        self._certificates, self._refusals = certificates, refusals
        self._connections: set[asyncio.Task[Any]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="control-tls", daemon=True)
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """End every connection."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, sock=self._listening)
        self._started.set()
        await self._ending.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server makes a task for each connection
        self._connections.add(task)
        try:
            if await self._is_operator(writer):
                await self._relay(reader, writer)
        except OSError:  # either side went away
            pass
        finally:
            writer.close()
            self._connections.discard(task)

    async def _is_operator(self, writer: asyncio.StreamWriter) -> bool:
        peer = str(writer.get_extra_info("peername")[0])
        if len(self._connections) > _CONNECTIONS:
            cause = f"{_CONNECTIONS} connections are open already"
            self._refusals.note(Refused.HANDSHAKE, peer=peer, cause=cause)
            return False
        try:
            await writer.start_tls(self._certificates.context(), ssl_handshake_timeout=_HANDSHAKE_SECONDS)
        except OSError as error:  # ssl.SSLError and what the connection itself may raise
            self._refusals.note(Refused.HANDSHAKE, peer=peer, cause=_words(error))
            return False
        found = [name for _, name in writer.get_extra_info("peercert").get("subjectAltName", ())]
        if names.TLS_OPERATOR_NAME not in found:
            cause = f"its certificate carries {', '.join(found) or 'no name'}, not {names.TLS_OPERATOR_NAME}"
            self._refusals.note(Refused.NAME, peer=peer, cause=cause)
            return False
        return True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._backend)
        directions = [
            asyncio.create_task(_pass_on(reader, inner_writer)),
            asyncio.create_task(_pass_on(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            inner_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with a client certificate: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return f"it went away during the handshake: {str(error) or type(error).__name__}"
