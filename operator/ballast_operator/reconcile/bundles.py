# SPDX-License-Identifier: Apache-2.0
"""What is known of bundles before anything is loaded: their headers, read by any worker of the pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from ballast_contract.reasons import Reason
from ballast_operator.fleet.link import CallError, Link
from ballast_operator.reconcile.wishes import Model, Rejection

logger = logging.getLogger(__name__)

Source = tuple[str, str]

_PARALLEL: Final = 8
_RETRY_SECONDS: Final = 30.0

_REFUSALS: Final = frozenset({Reason.SOURCE_NOT_FOUND, Reason.BUNDLE_INVALID, Reason.SOURCE_CHANGED})
"""What a worker says of a bundle; everything else is trouble of the call."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The headers of a bundle, or why they cannot be read."""

    weights_bytes: int = 0
    largest_tensor_bytes: int = 0
    rejection: Rejection | None = None
    retry_at: float | None = None
    """When to look again; None: what is known stays."""


class Bundles:
    """Reads headers in the background and remembers them by source; `changed` is called when something became known."""

    def __init__(self, *, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._known: dict[Source, Bundle] = {}
        self._reading: dict[Source, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_PARALLEL)

    def get(self, source: Source) -> Bundle | None:
        """What is known of a source; None while it has not been read."""
        return self._known.get(source)

    def want(self, models: Sequence[Model], readers: Sequence[Link]) -> float | None:
        """Read what is not known, or may have been repaired; returns the seconds until the next look is due."""
        now = self._clock()
        sources = {model.source for model in models}
        for source in self._known.keys() - sources:
            del self._known[source]
        due = []
        for source in sources - self._reading.keys():
            known = self._known.get(source)
            if known is not None and (known.retry_at is None or known.retry_at > now):
                if known.retry_at is not None:
                    due.append(known.retry_at - now)
            elif readers:
                reader = readers[hash(source) % len(readers)]
                self._reading[source] = asyncio.create_task(self._read(source, reader), name=f"inspect {source[0]}")
        return min(due, default=None)

    async def close(self) -> None:
        """Stop reading."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, source: Source, reader: Link) -> None:
        try:
            async with self._slots:
                answer = await reader.inspect(*source)
            found = Bundle(answer.weights_bytes, answer.largest_tensor_bytes)
        except CallError as error:
            if error.reason in _REFUSALS:
                found = Bundle(
                    rejection=Rejection(error.reason, error.message), retry_at=self._clock() + _RETRY_SECONDS
                )
            elif error.code is grpc.StatusCode.UNIMPLEMENTED:
                found = Bundle()
            else:
                logger.info("bundle %s cannot be inspected yet: %s", source[0], error.message)
                found = Bundle(
                    rejection=Rejection(Reason.PENDING, f"the bundle's headers cannot be read yet: {error.message}"),
                    retry_at=self._clock() + 2.0,
                )
        finally:
            self._reading.pop(source, None)
        self._known[source] = found
        self._changed()
