# SPDX-License-Identifier: Apache-2.0
"""Events: one for each change that a person should know of, never the same twice in a row."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.lease import micro_time
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import EVENTS, MANAGED_BY
from ballast_operator.reconcile.metrics import ReconcileMetrics

logger = logging.getLogger(__name__)

MAX_NOTE: Final = 1024
_AGAIN_SECONDS: Final = 600.0
_REMEMBERED: Final = 10_000
_PARALLEL: Final = 4
"""Events on their way at once: they are what the API server should be busy with last."""
_REST: Final = 9
"""How many times as long as a post took the next one waits: the slower the API server answers, the fewer Events it gets."""
_AWAY_SECONDS: Final = 5.0
"""Rest after a post that the API server did not take: it is away, or asks for patience."""
_LAST_SECONDS: Final = 5.0
"""How long the end of the process is put off for Events that wait, without any rest."""

Severity = Literal["Normal", "Warning"]

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Event:
    """What is said, with the time at which it was so."""

    namespace: str
    regarding: Object
    severity: Severity
    reason: Reason
    action: str
    note: str
    moment: str
    said: _Key

    def body(self, instance: str) -> Object:
        """The Event, under a name of its own: one that is sent again after a lost answer already exists then."""
        name = f"{self.regarding['name']}.{uuid.uuid5(uuid.NAMESPACE_OID, self.moment + repr(self.said)).hex[:16]}"
        return {
            "metadata": {"namespace": self.namespace, "name": name},
            "eventTime": self.moment,
            "reportingController": MANAGED_BY,
            "reportingInstance": instance[:128],
            "action": self.action,
            "reason": self.reason.value,
            "type": self.severity,
            "note": self.note,
            "regarding": self.regarding,
        }


class Events:
    """Posts Events in the background, Warnings first, and none is lost without a word.

    In a storm they go out in the order of their coming, each poster at rest most of the time. What waits is kept, also while
    the API server is away; of those about how one thing of an object stands only the newest waits, so that their number
    is bounded by that of the objects. What the API server refuses is logged: nothing depends on an Event.
    """

    def __init__(
        self,
        client: Client,
        *,
        instance: str,
        metrics: ReconcileMetrics,
        clock: Callable[[], float],
        now: Callable[[], dt.datetime],
    ) -> None:
        self._client = client
        self._instance = instance
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._said: OrderedDict[_Key, float] = OrderedDict()
        self._waiting: dict[Severity, OrderedDict[_Key, _Event]] = {"Warning": OrderedDict(), "Normal": OrderedDict()}
        self._going: dict[_Key, _Event] = {}
        """The newest of each that is on its way."""
        self._posters: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        metrics.events_waiting.set_function(self.waiting)

    def waiting(self) -> int:
        """Events that are to be posted and not on their way yet."""
        return sum(map(len, self._waiting.values()))

    def post(
        self,
        about: Object,
        kind: str,
        severity: Severity,
        reason: Reason,
        action: str,
        note: str,
        *,
        stands: bool = False,
    ) -> None:
        """Say something about an object, unless the same was said of it in the last ten minutes.

        Args:
            about: the object, with apiVersion where it is not of ours.
            kind: its kind.
            severity: Normal or Warning.
            reason: of the closed list.
            action: what was done or tried, in one CamelCase word.
            note: a sentence, cut at 1,024 characters.
            stands: it says how something stands, so that an earlier one of the same action that waits is out of date.
        """
        metadata = about["metadata"]
        said = metadata["uid"], reason.value, hashlib.sha256(note.encode()).hexdigest()
        now = self._clock()
        if now - self._said.get(said, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._said[said] = now
        self._said.move_to_end(said)
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        regarding = {
            "apiVersion": about["apiVersion"],
            "kind": kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        moment = micro_time(self._now())
        event = _Event(metadata["namespace"], regarding, severity, reason, action, note[:MAX_NOTE], moment, said)
        key = (metadata["uid"], action, "") if stands else said
        for held in self._waiting.values():
            if (older := held.pop(key, None)) is not None:
                self._said.pop(older.said, None)
                self._metrics.events.labels("superseded").inc()
        self._waiting[severity][key] = event
        if len(self._posters) < _PARALLEL:
            poster = asyncio.create_task(self._post(), name="events")
            self._posters.add(poster)
            poster.add_done_callback(self._posters.discard)

    async def close(self) -> None:
        """Post what waits for some seconds more, and say how many were left over."""
        self._ending.set()
        if self._posters:
            _, late = await asyncio.wait(self._posters, timeout=_LAST_SECONDS)
            for poster in late:
                poster.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if left := self.waiting():
            self._metrics.events.labels("left").inc(left)
            logger.warning("%d Events were not posted before the end", left)

    async def _post(self) -> None:
        while (severity := next((s for s, held in self._waiting.items() if held), None)) is not None:
            key, event = self._waiting[severity].popitem(last=False)
            self._going[key] = event
            started, sent = self._clock(), False
            try:
                sent = await self._send(event)
            finally:
                newest = self._going.get(key) is event
                if newest:
                    del self._going[key]
                if not sent:
                    self._put_back(severity, key, event, newest=newest)
            if not sent and self._ending.is_set():
                return
            await self._rest(_REST * (self._clock() - started) if sent else _AWAY_SECONDS)

    async def _send(self, event: _Event) -> bool:
        """Post one; False when it should be tried again."""
        result = "posted"
        try:
            await self._client.create(EVENTS, event.body(self._instance), priority=Priority.FIGURES)
        except errors.AlreadyExists:  # the answer to an earlier attempt was lost
            pass
        except errors.Unavailable as error:
            logger.info("Event waits: %s: %s", event.note, error)
            return False
        except errors.ApiError as error:
            logger.warning("Event not posted: %s: %s", event.note, error)
            result = "refused"
        self._metrics.events.labels(result).inc()
        return True

    def _put_back(self, severity: Severity, key: _Key, event: _Event, *, newest: bool) -> None:
        if not newest or any(key in held for held in self._waiting.values()):  # another came meanwhile
            self._metrics.events.labels("superseded").inc()
            return
        self._waiting[severity][key] = event
        self._waiting[severity].move_to_end(key, last=False)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):  # not wait_for, which may swallow a cancellation in Python 3.11
                await self._ending.wait()
        except TimeoutError:
            pass
