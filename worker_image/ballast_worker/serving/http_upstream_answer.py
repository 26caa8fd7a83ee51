# SPDX-License-Identifier: Apache-2.0
"""An answer of another worker, on its way to the client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ballast_worker.serving.http_stream import Stream

_ANSWER_HEADERS: Final = (b"inference-header-content-length", b"retry-after", b"allow", b"content-encoding")


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """What the other worker says.

    Attributes:
        status: of HTTP.
        headers: names in lower case.
        body: on its way.
        give_up: closes the connection that it comes on.
    """

    status: int
    headers: dict[bytes, bytes]
    body: Stream
    give_up: Callable[[], None]

    @property
    def content_type(self) -> str:
        """Of the body."""
        return self.headers.get(b"content-type", b"application/json").decode("latin-1")

    @property
    def passed_headers(self) -> list[str]:
        """Header lines that the client gets too."""
        return [
            f"{name.decode().title()}: {self.headers[name].decode('latin-1')}"
            for name in _ANSWER_HEADERS
            if name in self.headers
        ]

    async def dismiss(self) -> None:
        """Read what is still to come, and forget it."""
        self.body.discard()
        try:
            with contextlib.suppress(ConnectionResetError):
                await self.body.settled()
        finally:
            self.close()

    def close(self) -> None:
        """Give up what is still to come, and the connection with it."""
        if not self.body.ended:
            self.give_up()
