# SPDX-License-Identifier: Apache-2.0
"""All workers: one connection each, and what they last reported, which is the only source of tiers and readiness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ballast_operator.fleet.authority import Identity
from ballast_operator.fleet.channel import Dial, Member, channel
from ballast_operator.fleet.link import Link
from ballast_operator.fleet.view import HEARTBEAT_LIMIT_SECONDS, Difference, View

_TICK_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a worker told, or did not tell in time.

    `urgent` and `figures` are namespace/name of InferenceModels; `worker` says that its budget should look at once,
    `device` that it should look when convenient.
    """

    member: Member
    urgent: frozenset[str] = frozenset()
    figures: frozenset[str] = frozenset()
    worker: bool = False
    device: bool = False


class Fleet:
    """The connections to every worker pod that has an address. One loop owns it.

    `epoch` is asked before each call; `on_epoch` is told of a worker that has seen a higher one, and says whether ours
    will be raised above it. `identity` is asked for what we show and trust before each connection.
    """

    def __init__(
        self,
        *,
        epoch: Callable[[], int],
        identity: Callable[[], Identity],
        notify: Callable[[Notice], None],
        on_epoch: Callable[[int], bool],
        dial: Dial = channel,
        clock: Callable[[], float] = time.monotonic,
        heartbeat_limit: float = HEARTBEAT_LIMIT_SECONDS,
    ) -> None:
        self._heartbeat_limit = heartbeat_limit
        self._epoch = epoch
        self._identity = identity
        self._notify = notify
        self._on_epoch = on_epoch
        self._dial = dial
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._stale: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        """The clock on which reports grow stale."""
        return self._clock()

    def join(self, member: Member) -> Link:
        """Connect to a worker; an address that changed replaces the connection."""
        link = self._links.get(member.uid)
        if link is not None and link.member == member:
            return link
        if link is not None:
            self.leave(member.uid)
        link = self._links[member.uid] = Link(
            member,
            dial=self._dial,
            identity=self._identity,
            epoch=self._epoch,
            on_report=self._reported,
            on_refused=lambda view, objects: self._notify(Notice(view.member, urgent=objects, worker=True)),
            on_epoch=self._on_epoch,
            clock=self._clock,
            heartbeat_limit=self._heartbeat_limit,
        )
        return link

    def leave(self, uid: str) -> None:
        """Drop the connection to a pod that is gone."""
        link = self._links.pop(uid, None)
        self._stale.discard(uid)
        if link is not None:
            task = asyncio.create_task(link.close(), name=f"close {link.member.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def link(self, uid: str) -> Link | None:
        """The connection to a pod."""
        return self._links.get(uid)

    def view(self, uid: str) -> View | None:
        """What a pod last reported; None when it was never dialled."""
        link = self._links.get(uid)
        return None if link is None else link.view

    def links(self) -> list[Link]:
        """Every connection."""
        return list(self._links.values())

    async def run(self) -> None:
        """Watch for workers that fall silent, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._pause())
                self.tick()
        finally:
            for uid in list(self._links):
                self.leave(uid)
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _pause(self) -> float:
        """Seconds until the next worker would be stale if nothing came, at most a tick."""
        now = self._clock()
        due = (
            link.view.heard_at + link.view.limit - now for uid, link in self._links.items() if uid not in self._stale
        )
        return min(_TICK_SECONDS, max(_LEAST_SECONDS, min(due, default=_TICK_SECONDS)))

    def tick(self) -> None:
        """Tell of workers that have just become stale."""
        now = self._clock()
        for uid, link in self._links.items():
            if link.view.stale(now) and uid not in self._stale:
                self._stale.add(uid)
                self._notify(Notice(link.member, urgent=_objects(link), worker=True))

    def _reported(self, view: View, difference: Difference) -> None:
        back = view.member.uid in self._stale
        self._stale.discard(view.member.uid)
        link = self._links.get(view.member.uid)
        if link is None:  # it was dropped while the message was on its way
            return
        if not (back or difference.urgent or difference.figures or difference.worker or difference.device):
            return
        urgent = frozenset(difference.urgent) | (_objects(link) if back else frozenset())
        self._notify(
            Notice(
                view.member,
                urgent=urgent,
                figures=frozenset(difference.figures),
                worker=difference.worker or back,
                device=difference.device,
            )
        )


def _objects(link: Link) -> frozenset[str]:
    told = {m.object for m in link.view.models.values()}
    assigned = {m.object for m in link.desired.models} if link.desired is not None else set()
    return frozenset((told | assigned) - {""})
