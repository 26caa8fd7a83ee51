# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on a bare transport: requests in, answers out in the order of the requests, everything bounded.

What a request means is the handler's affair. It is told of a request when all of it is there; of one with a large body
that is not wanted whole, when its body begins and the answers before it are written. A connection holds at most one
request that is being read and `_PIPELINED` that wait for answers; beyond that, and while the client does not read its
answers, nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ballast_worker.serving.bodies import Bodies, Share
from ballast_worker.serving.http_answers import Answers
from ballast_worker.serving.http_exchange import Exchange, Handler, Progress
from ballast_worker.serving.http_limits import Limits
from ballast_worker.serving.http_message import HttpRequest
from ballast_worker.serving.http_reader import RefusedError, RequestReader
from ballast_worker.serving.http_stream import WINDOW, Stream
from ballast_worker.serving.http_times import Leaving, Use
from ballast_worker.serving.http_transport import BoundedProtocol

_PIPELINED: Final = 32
"""Requests of one connection that wait for answers; more are not read."""

_LINGER_SECONDS: Final = 2.0
"""How long a connection is kept readable after a refusal, so that the client reads the answer before a reset."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(BoundedProtocol):
    """One client."""

    def __init__(
        self,
        handler: Handler,
        *,
        opened: Callable[[HttpConnection], None],
        closed: Callable[[HttpConnection], None],
        limits: Limits,
        bodies: Bodies,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._handler = handler
        self._opened, self._closed = opened, closed
        self._limits = limits
        self._bodies = bodies
        self._clock = clock
        self._reader = RequestReader(self, max_body_bytes=limits.body_bytes, bodies=bodies)
        self._answers: Answers
        self._reading: Exchange | None = None
        self._refusal: Exchange | None = None
        self._leaving = Leaving()
        self._reading_since: float | None = None
        self._discarding = False
        self._client_reads = True
        self._closing = False
        self._use = Use(clock())

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        super().connection_made(transport)
        self._answers = Answers(self._transport, handle=self._handler.handle, last=self._last, written=self._written)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        del exc
        self._closed(self)
        self._answers.abandon()
        self._discarding, self._reading = True, None
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._discarding:
            return
        try:
            self._reader.read(data)
        except RefusedError as error:
            if not self._discarding:  # it is not behind the last request of the connection
                self._refuse(error.status, str(error), error.headers)
        else:
            if self._reader.under_way and not self._discarding:
                if self._reading_since is None:
                    self._reading_since = self._use.last = self._clock()
                if self._stream is not None:
                    self._pass_on(self._stream)

    # Receiver

    def head_read(self, request: HttpRequest, length: int | None, *, current: bool, keep_alive: bool) -> None:
        """See `Receiver.head_read`."""
        if self._discarding:
            return
        self._reading = exchange = Exchange(request, self, keep_alive=keep_alive, chunks=current)
        expects = current and b"expect" in request.headers and request.headers[b"expect"].lower() == b"100-continue"
        if (length is None or length > WINDOW) and not self._handler.wants_whole(request):
            demand = partial(self._go_on, exchange) if expects else None
            exchange.stream = Stream(length, regulate=self._regulate, demand=demand)
            self._answers.add(exchange)
            self.flush()
        elif expects:
            self._answers.add(_CONTINUE)
            self.flush()

    def request_read(self) -> None:
        """See `Receiver.request_read`."""
        exchange = self._reading
        if self._discarding or exchange is None:
            return
        exchange.keep_alive = exchange.keep_alive and not self._closing
        self._discarding = not exchange.keep_alive  # what follows on this connection is not for us
        self._reading = self._reading_since = None
        if exchange.stream is not None:
            self._pass_on(exchange.stream)
            exchange.stream.end()
            self._rest()
        else:
            exchange.request.body = self._reader.body()
            exchange.begun = True
            self._answers.add(exchange)
            self._handler.handle(exchange)
        if len(self._answers) >= _PIPELINED:
            self._regulate()

    def _go_on(self, exchange: Exchange) -> None:
        """The body that the client holds back is wanted: its time begins."""
        if exchange is self._reading:
            self._transport.write(_CONTINUE)
            self._reading_since = self._clock()

    def _pass_on(self, stream: Stream) -> None:
        """Hand over what one read has brought of a body that is not wanted whole."""
        if piece := self._reader.body():
            stream.feed(piece)
            if stream.taken and self._reading is not None:
                self._reading.request.share.give_back()

    @property
    def _stream(self) -> Stream | None:
        """The body that is being read and not wanted whole."""
        return None if self._reading is None else self._reading.stream

    # Answers

    def flush(self) -> None:
        """Write the answers that are there, up to the first request that still waits for one."""
        self._answers.flush()
        if self._paused:
            self._regulate()

    def retire(self) -> None:
        """Tell the client with the next answer to open another connection. Until then it stays open: closing one that is
        idle would lose a request that is on its way.
        """
        self._use.ends = 0.0

    def deserted(self, now: float) -> bool:
        """Nothing is under way, and nothing has been for so long that its client would have been told to leave it."""
        return not self._answers and self._reading_since is None and self._use.forsaken(now)

    def finish(self) -> None:
        """Close after the answers that are under way; at once when there are none."""
        self._closing = True
        self._rest()

    def abort(self) -> None:
        """Close now."""
        self._reset()

    def sweep(self, now: float) -> None:
        """End what has taken too long: an answer of which nothing leaves, a request that does not come, idleness."""
        waiting = self._transport.get_write_buffer_size()
        if waiting or self._answers:
            self._use.last = now
        if self._leaving.stuck(now, waiting, self._answers.relayed) > self._limits.request_seconds:
            if not waiting:
                self._answers.break_off()
            self.abort()
        elif self._reading_since is not None:
            limit = self._limits.head_seconds if self._reading is None else self._limits.request_seconds
            awaited = not self._paused and (self._stream is None or self._stream.demanded)
            if awaited and now - self._reading_since > limit:
                self._refuse(408, "the request did not arrive in time")
        elif not self._answers and now - self._use.last > self._limits.idle_seconds:
            self._transport.close()

    def _last(self, exchange: Exchange) -> bool:
        """Whether the connection ends with an answer: it is its time, or the body that the client holds back is not wanted."""
        self._use.last = now = self._clock()
        going = self._closing or now >= self._use.ends
        if exchange.stream is not None and exchange is self._reading:
            return going or not exchange.stream.demanded
        last = going and len(self._answers) == 1 and self._reading_since is None
        self._discarding = self._discarding or last
        return last

    def _written(self, exchange: Exchange) -> None:
        if exchange is self._refusal:
            self._linger()
        elif exchange.stream is not None and exchange is self._reading:
            exchange.stream.discard()
            if not exchange.stream.demanded:
                self._linger()
        else:
            self._rest()

    def _rest(self) -> None:
        """Close when all was read and answered, and no more requests are taken."""
        if (self._closing or self._discarding) and not self._answers and self._reading_since is None:
            self._transport.close()

    def _refuse(self, status: int, message: str, headers: Sequence[str] = ()) -> None:
        """Answer a request that cannot be read to its end, after those before it, then close."""
        if self._transport.is_closing():
            return
        exchange = self._reading or Exchange(
            HttpRequest(b"", b"", {}, b"", Share(self._bodies)), self, keep_alive=False, chunks=False
        )
        self._discarding, self._reading, self._reading_since = True, None, None
        self._reader.close()
        exchange.abandon()
        if exchange.stream is None:
            self._answers.add(exchange)
        else:
            exchange.stream.discard()
        if exchange.progress is Progress.HEAD:
            self.abort()
        elif exchange.progress is Progress.ALL:
            self._linger()
        else:
            self._refusal, exchange.begun, exchange.keep_alive = exchange, True, False
            exchange.respond_json(status, {"error": message}, headers=headers)

    def _linger(self) -> None:
        """Read and forget for a while, then close."""
        self._discarding, self._reading, self._reading_since = True, None, None
        self._reader.close()
        self._regulate()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)

    def _hold(self, *, held: bool) -> None:
        self._client_reads = not held
        self._answers.hold(held=held)
        self._regulate()

    def _regulate(self) -> None:
        """Read only as long as answers leave, and bodies go on."""
        stream = self._stream
        stop = (stream is not None and stream.full) or len(self._answers) >= _PIPELINED or not self._client_reads
        if self._pause(stop=stop) and not stop and self._reading_since is not None:
            self._reading_since = self._clock()  # it was not the client who took its time
