# SPDX-License-Identifier: Apache-2.0
"""The answers of one connection, written in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ballast_worker.serving.http_exchange import Answer, Exchange, Progress
from ballast_worker.serving.http_message import head
from ballast_worker.serving.http_stream import Stream, Writer

_JOINED_BYTES: Final = 32 << 10
"""Answers up to this size are put together before they are written; larger ones are written in pieces, uncopied."""


class Answers:
    """Exchanges whose answers are not written yet, and lines between them. Belongs to the event loop.

    An exchange whose body is still coming begins when it is the first: what it writes has its turn, and no other body comes
    before its own has ended.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        handle: Callable[[Exchange], None],
        last: Callable[[Exchange], bool],
        written: Callable[[Exchange], None],
    ) -> None:
        """Make one for a connection.

        Args:
            transport: of the connection.
            handle: gets an exchange that begins.
            last: whether the connection ends with the answer of this exchange; asked before its head is written.
            written: told of an answer that was written completely.
        """
        self._transport = transport
        self._handle = handle
        self._last = last
        self._written = written
        self._queue: deque[Exchange | bytes] = deque()
        self._relayed: Stream | None = None
        self._held = False
        self._flushing = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def relayed(self) -> int | None:
        """Bytes that came so far of the body that is being relayed; None when there is none."""
        return None if self._relayed is None else self._relayed.nbytes

    def add(self, entry: Exchange | bytes) -> None:
        """Put something at the end: an exchange, or bytes that are written when everything before them was."""
        self._queue.append(entry)

    def hold(self, *, held: bool) -> None:
        """The client takes nothing at the moment, or does so again."""
        self._held = held
        if self._relayed is not None:
            self._relayed.hold(held=held)

    def flush(self) -> None:
        """Write what is there, up to the first exchange that still waits for an answer or for more of it."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._queue and self._leave(self._queue[0]):
                pass
        finally:
            self._flushing = False

    def break_off(self) -> None:
        """The body that is being relayed takes too long."""
        if self._relayed is not None:
            self._relayed.break_off(TimeoutError())

    def abandon(self) -> None:
        """Nobody waits for answers any more."""
        for entry in self._queue:
            if isinstance(entry, Exchange):
                entry.abandon()
        self._queue.clear()

    def _leave(self, first: Exchange | bytes) -> bool:
        """Write the first entry; whether the next one has its turn."""
        if isinstance(first, bytes):
            self._transport.write(first)
            self._queue.popleft()
            return True
        if not first.begun:
            first.begun = True
            self._handle(first)
        if first.answer is not None and first.progress is Progress.NOTHING:
            self._write(first, first.answer)
        if first.progress is not Progress.ALL:
            return False
        if first.keep_alive:
            self._queue.popleft()
        else:
            self._queue.clear()
        self._written(first)
        return True

    def _write(self, exchange: Exchange, answer: Answer) -> None:
        exchange.keep_alive = exchange.keep_alive and not self._last(exchange)
        if isinstance(answer.body, Stream):
            self._relay(exchange, answer, answer.body)
            return
        length = sum(map(len, answer.body))
        start = head(answer.status, length, answer.content_type, answer.headers, keep_alive=exchange.keep_alive)
        pieces = () if exchange.request.method == b"HEAD" else answer.body
        if length <= _JOINED_BYTES:
            self._transport.write(b"".join((start, *pieces)))
        else:
            self._transport.writelines([start, *pieces])
        exchange.progress = Progress.ALL

    def _relay(self, exchange: Exchange, answer: Answer, body: Stream) -> None:
        def ended() -> None:
            self._relayed = None
            exchange.progress = Progress.ALL
            exchange.line.flush()

        start = head(
            answer.status,
            body.length,
            answer.content_type,
            answer.headers,
            keep_alive=exchange.keep_alive,
            chunks=exchange.chunks,
        )
        self._transport.write(start)
        if exchange.request.method == b"HEAD":
            body.discard()
            exchange.progress = Progress.ALL
            return
        exchange.progress = Progress.HEAD
        self._relayed = body
        body.hold(held=self._held)
        body.take(Writer(self._transport, chunked=body.length is None and exchange.chunks, ended=ended))
