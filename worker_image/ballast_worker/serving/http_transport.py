# SPDX-License-Identifier: Apache-2.0
"""One end of a TCP connection that is read and written within a bound."""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import abstractmethod
from typing import Final, cast

from ballast_worker.serving.http_stream import WINDOW

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent is thrown away, and the other end sees a reset instead of an end."""


class BoundedProtocol(asyncio.Protocol):
    """Knows its transport, and whether that is read. Belongs to the event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(WINDOW)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._hold(held=True)

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._hold(held=False)

    @abstractmethod
    def _hold(self, *, held: bool) -> None:
        """The other end takes nothing at the moment, or does so again."""

    def _pause(self, *, stop: bool) -> bool:
        """Stop to read, or go on; whether that changed anything."""
        if stop == self._paused or self._transport.is_closing():
            return False
        self._paused = stop
        if stop:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        return True

    def _reset(self) -> None:
        """Close now, and so that what was written does not look as if it were complete."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()
