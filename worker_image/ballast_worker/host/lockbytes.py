# SPDX-License-Identifier: Apache-2.0
"""Which bytes of a pool's table file are locked for what; none of them is ever written."""

from __future__ import annotations

from typing import Final

TABLE_BYTE: Final = 1 << 40
"""Held for bookkeeping only, never while a file is read or a segment allocated."""
PRESENCE_BYTE: Final = TABLE_BYTE + 1
"""Held, shared, by everybody who uses the pool."""
ALLOCATION_BYTE: Final = TABLE_BYTE + 2
"""Held while a segment file exists that is not in the table yet."""
_SLOTS: Final = TABLE_BYTE + 16


def entry_byte(slot: int) -> int:
    """Exclusive: the region is being filled or evicted. Shared: it is being transferred."""
    return _SLOTS + 2 * slot


def keep_byte(slot: int) -> int:
    """Shared: a worker wants the region kept. Exclusive: it is being evicted."""
    return _SLOTS + 2 * slot + 1
