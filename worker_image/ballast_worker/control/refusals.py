# SPDX-License-Identifier: Apache-2.0
"""Who was not heard on the control channel, and why: counted each time, logged without flooding the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 10.0
_REMEMBERED: Final = 1000


class Refused(StrEnum):
    """Why a caller was not heard."""

    HANDSHAKE = "handshake"
    """No mutual TLS came about: no certificate, an expired one, or one of an authority that is not trusted."""
    NAME = "name"
    """The certificate is good and carries another name than the operator's."""
    EPOCH = "epoch"
    """The call carries no epoch, or an older one than this worker has seen."""


class Refusals:
    """Counts refusals by reason, and logs each cause at most once in ten seconds. Any thread may call.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(Refused, 0))
        self._logged: dict[tuple[str, str, str], float] = {}

    def note(self, reason: Refused, *, peer: str, cause: str) -> None:
        """Count one, from an address without its port, for a cause in words."""
        with self._lock:
            self._counts[reason] += 1
            key, now = (reason.value, peer, cause), self._clock()
            if now - self._logged.get(key, float("-inf")) < _AGAIN_SECONDS:
                return
            if len(self._logged) >= _REMEMBERED:
                self._logged.clear()
            self._logged[key] = now
        _log.warning(
            "a control call from %s was refused: %s",
            peer,
            cause,
            extra={"event": "control.refused", "reason": reason.value, "peer": peer, "cause": cause},
        )

    def counts(self) -> dict[str, int]:
        """Refusals so far, by reason."""
        with self._lock:
            return {reason.value: self._counts[reason] for reason in Refused}
