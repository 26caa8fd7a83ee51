# SPDX-License-Identifier: Apache-2.0
"""Compressed request bodies, inflated with a bound: a small body must not become one that fills the memory."""

from __future__ import annotations

import zlib
from typing import Final

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


def inflate(body: bytes, coding: bytes, limit: int) -> bytes:
    """The body without its coding. Holds the interpreter lock for pieces of the work only.

    Raises:
        ContentCodingError: the coding is unknown, the body is damaged, or it is larger than `limit` bytes.
    """
    if coding.strip().lower() not in _ACCEPTED:
        raise ContentCodingError(
            415, f"content coding {coding.decode('latin-1')} is not read: send gzip, deflate or none"
        )
    inflater = zlib.decompressobj(wbits=47)  # tells gzip from zlib by the header
    try:
        inflated = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise ContentCodingError(400, f"the compressed body is damaged: {error}") from error
    if len(inflated) > limit:
        raise ContentCodingError(413, f"the inflated body exceeds {limit} bytes, which is serving.maxRequestBytes")
    if not inflater.eof or inflater.unused_data:
        raise ContentCodingError(400, "the compressed body is cut short, or something follows it")
    return inflated
