# SPDX-License-Identifier: Apache-2.0
"""What XLA's allocator has in use, against what uploads took of it and what was given back since.

Both sides are the allocator's own figures, so that this holds whether or not the replay can follow it. An arena needs no
such account: it is one allocation, of which extents and free blocks are parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

_log = logging.getLogger(__name__)


class Balance:
    """The bytes that should be in use whenever nothing executes and nothing is uploaded. One thread at a time uses it.

    Attributes:
        expected: bytes.
        leaked: bytes in use beyond what weights hold, now.
        leaked_total: all that came to be in use beyond that; what comes back later is not taken off.
    """

    def __init__(self, in_use: int) -> None:
        self.expected = in_use
        self.leaked = 0
        self.leaked_total = 0
        self._freed: set[str] = set()

    def took(self, in_use: int) -> int:
        """An upload has ended well; returns the bytes that it took."""
        taken, self.expected = in_use - self.expected, in_use
        return taken

    def freed(self, key: str, taken: int) -> None:
        """Weights were given back that took so many bytes."""
        self._freed.add(key)
        self.expected -= taken

    def compare(self, in_use: int, *, failed: Iterable[str] = ()) -> None:
        """Count what is in use beyond what is expected, and say whose it may be: of what failed, or was freed before."""
        more, self.expected = in_use - self.expected, in_use
        suspects, self._freed = sorted({*self._freed, *failed}), set()
        self.leaked = max(0, self.leaked + more)
        if more > 0:
            self.leaked_total += more
            _log.warning(
                "%d bytes of device memory are still in use, which no weights hold, after the end of %s: a restart of this "
                "worker frees them",
                more,
                ", ".join(suspects) or "no weights, so somebody else took them",
            )
