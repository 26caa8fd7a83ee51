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
from typing import Final, Literal

from ballast_contract.reasons import Reason
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import EVENTS, MANAGED_BY

logger = logging.getLogger(__name__)

MAX_NOTE: Final = 1024
_AGAIN_SECONDS: Final = 600.0
_REMEMBERED: Final = 10_000
_PENDING: Final = 1_000
_PARALLEL: Final = 4
"""Events on their way at once: they are what the API server should be busy with last."""

Severity = Literal["Normal", "Warning"]


class Events:
    """Posts Events in the background. What cannot be posted is logged and forgotten: nothing depends on an Event."""

    def __init__(
        self, client: Client, *, instance: str, clock: Callable[[], float], now: Callable[[], dt.datetime]
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._now = now
        self._said: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._dropping = False

    def post(self, about: Object, kind: str, severity: Severity, reason: Reason, action: str, note: str) -> None:
        """Say something about an object, unless the same was said of it in the last ten minutes.

        Args:
            about: the object, with apiVersion where it is not of ours.
            kind: its kind.
            severity: Normal or Warning.
            reason: of the closed list.
            action: what was done or tried, in one CamelCase word.
            note: a sentence, cut at 1,024 characters.
        """
        uid = about["metadata"]["uid"]
        key = uid, reason.value, hashlib.sha256(note.encode()).hexdigest()
        now = self._clock()
        if now - self._said.get(key, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._said[key] = now
        self._said.move_to_end(key)
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        if len(self._tasks) >= _PENDING:
            if not self._dropping:
                logger.warning("%d Events wait to be posted: those that come meanwhile are not", _PENDING)
            self._dropping = True
            return
        self._dropping = self._dropping and len(self._tasks) > _PENDING // 2
        body = self._body(about, kind, severity, reason, action, note)
        task = asyncio.create_task(self._post(body), name="event")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _body(self, about: Object, kind: str, severity: Severity, reason: Reason, action: str, note: str) -> Object:
        metadata = about["metadata"]
        moment = self._now().astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        return {
            "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
            "eventTime": moment,
            "reportingController": MANAGED_BY,
            "reportingInstance": self._instance[:128],
            "action": action,
            "reason": reason.value,
            "type": severity,
            "note": note[:MAX_NOTE],
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }

    async def _post(self, body: Object) -> None:
        try:
            async with self._slots:
                await self._client.create(EVENTS, body, priority=Priority.FIGURES)
        except errors.ApiError as error:
            logger.info("Event not posted: %s: %s", body["note"], error)
