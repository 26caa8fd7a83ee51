# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS in front of the control service: who connects has to prove to be the operator, and who fails is named.

gRPC's own server tells Python nothing of a handshake that failed, so TLS ends here and the bytes go on to gRPC over a
socket that only this process can reach.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Final

from ballast_contract import names
from ballast_worker.control.certificates import Certificates
from ballast_worker.control.refusals import Refusals, Refused

_HANDSHAKE_SECONDS: Final = 10.0
_STRANGERS: Final = 64
"""Connections at once that have not proved anything yet; one more, and the oldest of them ends."""
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
        self._strangers: dict[asyncio.StreamWriter, None] = {}
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
        self._strangers[writer] = None
        if len(self._strangers) > _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()  # its handshake fails
        peer = str((writer.get_extra_info("peername") or ("an address that is gone",))[0])
        try:
            tls = _Tls(self._certificates.context(), reader, writer)
            if await self._is_operator(tls, peer):
                self._strangers.pop(writer, None)
                await self._relay(tls)
        except OSError:  # either side went away
            pass
        finally:
            self._strangers.pop(writer, None)
            writer.close()
            self._connections.discard(task)

    async def _is_operator(self, tls: _Tls, peer: str) -> bool:
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await tls.handshake()
        except OSError as error:  # ssl.SSLError, TimeoutError and what the connection itself may raise
            self._refusals.note(Refused.HANDSHAKE, peer=peer, cause=_words(error))
            return False
        found = tls.names()
        if names.TLS_OPERATOR_NAME not in found:
            cause = f"its certificate carries {', '.join(found) or 'no name'}, not {names.TLS_OPERATOR_NAME}"
            self._refusals.note(Refused.NAME, peer=peer, cause=cause)
            return False
        return True

    async def _relay(self, tls: _Tls) -> None:
        reader, writer = await asyncio.open_unix_connection(self._backend)

        async def forth() -> None:
            while chunk := await tls.read():
                writer.write(chunk)
                await writer.drain()

        async def back() -> None:
            while chunk := await reader.read(_CHUNK):
                await tls.write(chunk)

        directions = [asyncio.create_task(forth()), asyncio.create_task(back())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            writer.close()


class _Tls:
    """The server's side of TLS over a pair of streams. A connection that is lost is an OSError, or the end of `read`."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Raises OSError; the other side is told what was wrong."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not await self._receive():
                    raise ConnectionResetError("it was ended") from None
            else:
                return
            finally:
                await self._send()

    def names(self) -> list[str]:
        """The names in the certificate of the other side."""
        certificate: Any = self._tls.getpeercert() or {}
        return [name for _, name in certificate.get("subjectAltName", ())]

    async def read(self) -> bytes:
        """What arrives next; nothing at the end."""
        while True:
            try:
                return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                if not await self._receive():
                    return b""

    async def write(self, chunk: bytes) -> None:
        """Send it all."""
        self._tls.write(chunk)
        await self._send()

    async def _receive(self) -> bool:
        await self._send()
        raw = await self._reader.read(_CHUNK)
        self._incoming.write(raw)
        return bool(raw)

    async def _send(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with a client certificate: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return f"no TLS within {_HANDSHAKE_SECONDS:.0f} s"
    return f"the connection was lost during the handshake: {str(error) or type(error).__name__}"
