# SPDX-License-Identifier: Apache-2.0
"""What one HTTP connection may take: bytes, and time in each of its states. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_contract.config import Serving

MAX_HEAD_BYTES: Final = 64 << 10
"""Bytes of request line and headers. Also of whole reads that bring neither body nor the end of anything, since the parser
keeps an unfinished header, of whatever size: a head, a trailer or an extension that goes on and on.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a connection.

    Attributes:
        body_bytes: of a request's body.
        idle_seconds: without a request.
        head_seconds: from the first byte of a request to the end of its headers.
        request_seconds: from the first byte of a request to its last; also while nothing of an answer leaves.
    """

    body_bytes: int
    idle_seconds: float
    head_seconds: float
    request_seconds: float

    @classmethod
    def of(cls, config: Serving) -> Limits:
        """The limits that a configuration sets."""
        return cls(
            body_bytes=config.max_request_bytes,
            idle_seconds=config.idle_timeout_seconds,
            head_seconds=min(config.header_timeout_seconds, config.request_timeout_seconds),
            request_seconds=config.request_timeout_seconds,
        )
