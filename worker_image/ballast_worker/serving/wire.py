# SPDX-License-Identifier: Apache-2.0
"""The little of protobuf's wire format that lets large tensors pass without being copied, and calls without being read.

Source: the encoding chapter of the Protocol Buffers documentation. Only top-level fields are looked at; everything else
is left to the generated classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def fields(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Top-level fields in order: number, where the field begins, where its content begins, where it ends.

    The content of a field of type `LENGTH` is its payload.

    Raises:
        WireError: the message is cut short or has a field of an unknown type.
    """
    position, end = 0, len(message)
    while position < end:
        start = position
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == LENGTH:
            size, position = _varint(message, position)
            content, position = position, position + size
        elif kind == VARINT:
            content = position
            _, position = _varint(message, position)
        elif kind in (FIXED32, FIXED64):
            content, position = position, position + (4 if kind == FIXED32 else 8)
        else:
            raise WireError(f"field of wire type {kind} at byte {start}")
        if position > end:
            raise WireError(f"the field at byte {start} ends at {position}; the message has {end} bytes")
        yield tag >> 3, start, content, position


def first_text(message: bytes, number: int) -> str:
    """The text field of this number, as the last occurrence sets it; empty when it is not there.

    Raises:
        WireError: the message is damaged, or the field is no text.
    """
    view = memoryview(message)
    text = b""
    for field, _, content, end in fields(view):
        if field == number:
            text = bytes(view[content:end])
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"field {number} is not UTF-8") from error


def split(message: bytes, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its bytes fields of this number, and those fields as views of it.

    Raises:
        WireError: the message is damaged.
    """
    view = memoryview(message)
    kept: list[memoryview] = []
    taken: list[memoryview] = []
    begin = 0
    for field, start, content, end in fields(view):
        if field == number:
            kept.append(view[begin:start])
            taken.append(view[content:end])
            begin = end
    if not taken:
        return message, taken
    kept.append(view[begin:])
    return b"".join(kept), taken


def bytes_field(number: int, size: int) -> bytes:
    """Tag and length of a bytes field whose payload of `size` bytes follows."""
    return _encode(number << 3 | LENGTH) + _encode(size)


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise WireError(f"a number at byte {position} is cut short or longer than 64 bits")
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
