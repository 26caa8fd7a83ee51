# SPDX-License-Identifier: Apache-2.0
"""Counters of what was passed on to other workers."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Final

_PROTOCOLS: Final = ("http", "grpc")


class Result(StrEnum):
    """What became of a request that was passed on."""

    ANSWERED = "answered"
    """The answer was passed back, whatever it says."""
    LOST = "lost"
    """The other worker ended, or the model left it, when it had got a part of the request or sent a part of the answer."""
    LATE = "late"
    """The other worker did not answer in time, or went silent in the middle of its answer."""
    LEFT = "left"
    """The client left before it had all of the answer, or did not send its body in time."""


class Forwarded:
    """Written on the event loop, read by any thread: every item is there from the start, so that nobody needs a lock.

    Attributes:
        requests: by protocol and result.
        nbytes: of bodies, by protocol and direction: request or answer.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = dict.fromkeys(product(_PROTOCOLS, Result), 0)
        self.nbytes: dict[tuple[str, str], int] = dict.fromkeys(product(_PROTOCOLS, ("request", "answer")), 0)

    def count(self, protocol: str, result: Result, *, request: int, answer: int) -> None:
        """One request, with the bytes of its body and of the answer's that were passed on."""
        self.nbytes[protocol, "request"] += request
        self.nbytes[protocol, "answer"] += answer
        self.requests[protocol, result] += 1  # last: who sees the request sees its bytes
