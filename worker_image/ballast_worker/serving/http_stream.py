# SPDX-License-Identifier: Apache-2.0
"""A body on its way from the connection that reads it to whoever takes it, with a bound on what lies between.

Until it is taken its pieces are kept, and the reading side stops when there are `WINDOW` bytes; from then on each piece
goes straight on, and the reading side stops while the taker is full. A read that has begun is always delivered, so at
most `WINDOW` bytes and one read of the event loop are between the two connections.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

WINDOW: Final = 64 << 10
"""Bytes that wait for a taker, or in a transport's buffer, before the reading side stops."""


class Taker(Protocol):
    """Gets a body piece by piece."""

    def write(self, piece: bytes) -> None:
        """A piece, never empty."""
        ...

    def end(self) -> None:
        """That was all."""
        ...


class Transport(Protocol):
    """What a writer needs of an `asyncio.WriteTransport`."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...


class Writer:
    """A taker that writes a body to a transport, in chunks where its length was not told."""

    def __init__(self, transport: Transport, *, chunked: bool, ended: Callable[[], None]) -> None:
        self._transport, self._chunked, self._ended = transport, chunked, ended

    def write(self, piece: bytes) -> None:
        """See `Taker.write`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def end(self) -> None:
        """See `Taker.end`."""
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._ended()


class _Nobody:
    def write(self, piece: bytes) -> None:
        pass

    def end(self) -> None:
        pass


class Stream:
    """One body. Belongs to the event loop.

    Attributes:
        length: bytes in all, where they were told beforehand.
        nbytes: that came so far.
        ended: all of it came.
    """

    def __init__(
        self, length: int | None, *, regulate: Callable[[], None], demand: Callable[[], None] | None = None
    ) -> None:
        """Make one of which nothing came yet.

        Args:
            length: see above.
            regulate: called when `full` may have changed.
            demand: called once, before the first byte is wanted; None when the sender does not wait for it.
        """
        self.length = length
        self.nbytes = 0
        self.ended = False
        self._broken: Exception | None = None
        self._regulate = regulate
        self._demand = demand
        self._kept = bytearray()
        self._most: float = WINDOW
        self._taker: Taker | None = None
        self._held = False
        self._news: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """The reading side has to stop."""
        return not self.ended and (self._held if self._taker is not None else len(self._kept) >= self._most)

    @property
    def demanded(self) -> bool:
        """The sender has not to wait before it sends."""
        return self._demand is None

    @property
    def taken(self) -> bool:
        """It has gone to somebody, and cannot be had again."""
        return self._taker is not None

    @property
    def awaited(self) -> bool:
        """Whoever has taken it waits for more of it."""
        return self.taken and not (self.ended or self._held or isinstance(self._taker, _Nobody))

    def feed(self, piece: bytes) -> None:
        """A piece has come; not an empty one."""
        self.nbytes += len(piece)
        if self._taker is not None:
            self._taker.write(piece)
        else:
            self._kept += piece
        self._tell()

    def end(self) -> None:
        """Everything has come."""
        self.ended = True
        if self._taker is not None:
            self._taker.end()
        self._tell()

    def break_off(self, error: Exception) -> None:
        """No more will come; whoever waits for it gets the error."""
        self._broken = error
        self._tell()

    def take(self, taker: Taker) -> None:
        """Give it to somebody: what is there now, the rest as it comes."""
        self._ask()
        self._taker = taker
        if self._kept:
            taker.write(bytes(self._kept))
            self._kept.clear()
        if self.ended:
            taker.end()
        self._regulate()

    def discard(self) -> None:
        """Nobody wants it, or the rest of it."""
        self._taker = _Nobody()
        self._held = False
        self._kept.clear()
        self._regulate()

    def hold(self, *, held: bool) -> None:
        """The taker is full, or not any more."""
        self._held = held
        self._regulate()

    async def whole(self, most: float = math.inf) -> bytes | None:
        """The body when all of it has come; None as soon as it is known to have more than `most` bytes, all of it kept.

        Raises:
            Exception: with which it was broken off.
        """
        if self.length is not None and self.length > most:
            return None
        self._ask()
        self._most = most + 1
        self._regulate()
        while not self.ended and len(self._kept) <= most:
            await self._next()
        return bytes(self._kept) if len(self._kept) <= most else None

    async def settled(self) -> None:
        """Wait until all of it has come.

        Raises:
            Exception: with which it was broken off.
        """
        while not self.ended:
            await self._next()

    async def _next(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._regulate()

    def _ask(self) -> None:
        demand, self._demand = self._demand, None
        if demand is not None:
            demand()
