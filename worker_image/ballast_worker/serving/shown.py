# SPDX-License-Identifier: Apache-2.0
"""What a client sent as messages repeat it: short, whatever its size and depth."""

from __future__ import annotations

import reprlib
from typing import Final

_CHARACTERS: Final = 256

_REPR: Final = reprlib.Repr()
_REPR.maxlist, _REPR.maxstring, _REPR.maxother = 16, _CHARACTERS, _CHARACTERS


def cut(text: str) -> str:
    """A text, or its beginning."""
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


def shown(value: object) -> str:
    """A value of a JSON document as Python writes it, or its beginning."""
    return _REPR.repr(value)
