# SPDX-License-Identifier: Apache-2.0
"""Compressed request bodies, inflated with a bound: a small body must not become one that fills the memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

_STEP: Final = 256 << 10
"""Bytes of a body that are inflated at once, and that come of it at once."""

_ACCEPTED: Final = (b"gzip", b"x-gzip", b"deflate")


class ContentCodingError(Exception):
    """A body that cannot be inflated.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_plain(coding: bytes) -> bool:
    """Whether a Content-Encoding leaves the body as it is."""
    return coding.strip().lower() in (b"", b"identity")


def inflate(body: bytes, coding: bytes, limit: int, take: Callable[[int], None]) -> bytes:
    """The body without its coding. Holds the interpreter lock for pieces of the work only.

    Args:
        body: as it came.
        coding: as in Content-Encoding.
        limit: bytes of the result.
        take: told how many bytes each piece of the result has; what it raises ends the work.

    Raises:
        ContentCodingError: the coding is unknown, the body is damaged, or it is larger than `limit` bytes.
    """
    if coding.strip().lower() not in _ACCEPTED:
        raise ContentCodingError(
            415, f"content coding {coding.decode('latin-1')} is not read: send gzip, deflate or none"
        )
    inflater = zlib.decompressobj(wbits=47)  # tells gzip from zlib by the header
    try:
        inflated = _pieces(inflater, body, limit, take)
    except zlib.error as error:
        raise ContentCodingError(400, f"the compressed body is damaged: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise ContentCodingError(400, "the compressed body is cut short, or something follows it")
    return b"".join(inflated)


def _pieces(inflater: zlib._Decompress, body: bytes, limit: int, take: Callable[[int], None]) -> list[bytes]:
    pieces: list[bytes] = []
    nbytes, view = 0, memoryview(body)
    for start in range(0, len(body), _STEP):
        rest: bytes | memoryview = view[start : start + _STEP]
        full = True
        while full:  # less than was asked for means that all of the input is used
            piece = inflater.decompress(rest, _STEP)
            rest, full = inflater.unconsumed_tail, len(piece) == _STEP
            nbytes += len(piece)
            if nbytes > limit:
                raise ContentCodingError(
                    413, f"the inflated body exceeds {limit} bytes, which is serving.maxRequestBytes"
                )
            take(len(piece))
            pieces.append(piece)
    return pieces
