# SPDX-License-Identifier: Apache-2.0
"""The little of protobuf's wire format that lets large tensors pass without being copied.

Source: the encoding chapter of the Protocol Buffers documentation. Only top-level fields are looked at; everything else
is left to the generated classes.
"""

from __future__ import annotations

from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_MOST_FIELDS: Final = 4096
"""Of one message: each costs a microsecond and, taken out, 400 bytes, and a manifest names 256 inputs at most."""

_FIXED_BYTES: Final = {_FIXED32: 4, _FIXED64: 8}


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def split(message: bytes, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its bytes fields of this number, and those fields as views of it.

    Costs a microsecond per top-level field, whatever their size.

    Raises:
        WireError: the message is cut short, or has a field of an unknown type, or too many fields.
    """
    view = memoryview(message)
    kept: list[memoryview] = []
    taken: list[memoryview] = []
    wanted = number << 3 | _LENGTH
    position = begin = fields = 0
    end = len(message)
    while position < end:
        fields += 1
        if fields > _MOST_FIELDS:
            raise WireError(f"it has more than {_MOST_FIELDS} fields")
        start = position
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _LENGTH:
            size, position = _varint(message, position)
            content, position = position, position + size
            if tag == wanted:
                kept.append(view[begin:start])
                taken.append(view[content:position])
                begin = position
        elif kind == _VARINT:
            _, position = _varint(message, position)
        elif kind in _FIXED_BYTES:
            position += _FIXED_BYTES[kind]
        else:
            raise WireError(f"field of wire type {kind} at byte {start}")
        if position > end:
            raise WireError(f"the field at byte {start} ends at byte {position}; the message has {end}")
    if not taken:
        return message, taken
    kept.append(view[begin:])
    return b"".join(kept), taken


def bytes_field(number: int, size: int) -> bytes:
    """Tag and length of a bytes field whose payload of `size` bytes follows."""
    return _encode(number << 3 | _LENGTH) + _encode(size)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    try:
        byte = message[position]
        if byte < 0x80:
            return byte, position + 1
        result, shift = byte & 0x7F, 7
        while shift < 70:
            position += 1
            byte = message[position]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result, position + 1
            shift += 7
    except IndexError:
        raise WireError(f"a number at byte {position} is cut short") from None
    raise WireError(f"a number at byte {position} is longer than 64 bits")


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
