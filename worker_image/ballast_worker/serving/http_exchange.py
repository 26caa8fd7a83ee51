# SPDX-License-Identifier: Apache-2.0
"""A request and the place of its answer on a connection, and who answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

import orjson

from ballast_worker.serving.http_message import HttpRequest
from ballast_worker.serving.http_stream import Stream

Pieces = Sequence[bytes | memoryview]


class Progress(Enum):
    """How much of an answer was written."""

    NOTHING = auto()
    HEAD = auto()
    ALL = auto()


class Line(Protocol):
    """The connection, as an exchange needs it."""

    def flush(self) -> None:
        """Write the answers that are there."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


@dataclass(slots=True)
class Answer:
    """What is to be written. Its body is in pieces, or a stream."""

    status: int
    body: Pieces | Stream
    content_type: str
    headers: Sequence[str]


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and the place of its answer. Belongs to the event loop; it is answered once.

    Attributes:
        request: as it was read.
        line: the connection.
        keep_alive: another answer may follow on the connection.
        chunks: the client knows chunks.
        stream: the body, while it is still coming; `request.body` is empty meanwhile.
        task: that works on the answer, if there is one.
        begun: the handler has been told of it.
        answer: once there is one.
        progress: of writing it.
    """

    request: HttpRequest
    line: Line
    keep_alive: bool = field(kw_only=True)
    chunks: bool = field(kw_only=True)
    stream: Stream | None = None
    task: asyncio.Task[None] | None = None
    begun: bool = False
    answer: Answer | None = None
    progress: Progress = Progress.NOTHING

    def respond(
        self, status: int, pieces: Pieces, *, content_type: str = "application/json", headers: Sequence[str] = ()
    ) -> None:
        """Answer.

        Args:
            status: HTTP status.
            pieces: of the body; not changed until they are written.
            content_type: of the body.
            headers: further lines, as in `Retry-After: 1`.
        """
        self.answer = Answer(status, pieces, content_type, headers)
        self.line.flush()

    def respond_json(self, status: int, document: object, *, headers: Sequence[str] = ()) -> None:
        """Answer with a JSON document."""
        self.respond(status, [orjson.dumps(document)], headers=headers)

    def relay(self, status: int, body: Stream, *, content_type: str, headers: Sequence[str] = ()) -> None:
        """Answer with a body that is still coming; arguments as in `respond`."""
        self.answer = Answer(status, body, content_type, headers)
        self.line.flush()

    async def gather(self, most: float = math.inf) -> None:
        """Have the body in the request, unless it has more than `most` bytes."""
        if self.stream is not None:
            body = await self.stream.whole(most)
            if body is not None:
                self.request.body, self.stream = body, None

    def abandon(self) -> None:
        """Nobody waits for an answer any more."""
        if self.task is not None:
            self.task.cancel()

    def take_back(self) -> bool:
        """Forget an answer that cannot be given; whether another one may be. It may not when a part of it was written: the
        client sees the connection end before the answer does.
        """
        if self.progress is Progress.NOTHING:
            self.answer = None
        elif self.progress is Progress.HEAD:
            self.line.abort()
        return self.progress is Progress.NOTHING


class Handler(Protocol):
    """Who answers. Called on the event loop."""

    def wants_whole(self, request: HttpRequest) -> bool:
        """Whether a request with a large body, known by its head, is to be read to its end before it is handled."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        ...

    def close(self) -> None:
        """There are no more requests."""
        ...
