# SPDX-License-Identifier: Apache-2.0
"""Leader election by a Lease: who may act, and with which epoch.

Election is not fencing: two processes can believe to lead for a moment. So every acquisition raises `leaseTransitions`,
which travels as the epoch in each control call, and workers refuse an older one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import LEASES

DURATION_SECONDS: Final = 10
RENEW_SECONDS: Final = 7
RETRY_SECONDS: Final = 2

MAX_STEP: Final = 1_000_000
"""How far above the epoch of its acquisition a leader follows the epochs that workers report.

A Lease that was deleted begins anew far below what workers have seen, by as much as there ever were acquisitions. A report
above that is a fault of the worker, and must not use up the numbers: the field of the Lease ends at 2**31 - 1.
"""

_MAX_TRANSITIONS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Write:
    """A Lease to be written: created when there was none, else replaced at its resourceVersion."""

    body: Object
    create: bool
    epoch: int


class Elector:
    """The decisions of one candidate; pure, with an injected clock (`clock`, monotonic seconds) and `now` (UTC).

    A follower times the holder out on its own clock since it last saw the record change, never by the timestamps in
    the record: clocks of machines differ.
    """

    def __init__(
        self,
        *,
        identity: str,
        namespace: str,
        name: str,
        clock: Callable[[], float],
        now: Callable[[], dt.datetime],
    ) -> None:
        self._identity = identity
        self._metadata = {"namespace": namespace, "name": name}
        self._clock = clock
        self._now = now
        self._record: Object | None = None
        self._seen_at = clock()
        self._renewed_at: float | None = None
        self._floor = 0
        self._acquired_with = 0
        self.epoch = 0
        """The number of our acquisition; 0 when we do not lead."""

    @property
    def leading(self) -> bool:
        """Whether the last write that succeeded made us the holder, and nothing since says otherwise."""
        return self._renewed_at is not None

    @property
    def holder(self) -> str:
        """Who holds the Lease, as last seen; empty when nobody does."""
        return str(self._spec("holderIdentity", ""))

    def follows(self, epoch: int) -> bool:
        """Whether an epoch that a worker has seen is one that ours may be raised above. Any thread may ask."""
        return epoch < self._acquired_with + MAX_STEP

    def raise_above(self, epoch: int) -> None:
        """Make the next write carry an epoch above this one, which a worker has seen, unless it is not to be followed."""
        if self.follows(epoch):
            self._floor = max(self._floor, epoch + 1)

    @property
    def behind(self) -> bool:
        """Whether a worker has seen an epoch that is not below ours yet."""
        return self.leading and self.epoch < self._floor

    def observe(self, lease: Object | None) -> None:
        """Take the Lease as the API server holds it now."""
        if _version(lease) != _version(self._record):
            self._seen_at = self._clock()
        self._record = lease
        if self.leading and self.holder != self._identity:
            self._renewed_at, self.epoch = None, 0

    def intent(self) -> Write | None:
        """What to write now; None while somebody else holds the Lease and has not timed out."""
        if self._record is None:
            return self._write(create=True)
        if self.leading or not self.holder or self._clock() - self._seen_at >= self._duration():
            return self._write(create=False)
        return None

    def written(self, write: Write, lease: Object, *, started: float) -> None:
        """A write succeeded; `started` is when its call began, from which our time runs."""
        self._record = lease
        self._seen_at = self._clock()
        if not self.leading:
            self._acquired_with = write.epoch
        self._renewed_at, self.epoch = started, write.epoch

    def lost(self) -> bool:
        """Whether we led and have not renewed in time: others may believe to lead from now on. Any thread may ask."""
        renewed_at = self._renewed_at
        return renewed_at is not None and self._clock() - renewed_at >= RENEW_SECONDS

    def release(self) -> Write | None:
        """What to write to hand over at once; None when we do not lead."""
        if not self.leading or self._record is None:
            return None
        body = {**self._record, "spec": {**self._record["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        return Write(body, create=False, epoch=self.epoch)

    def _duration(self) -> float:
        return float(str(self._spec("leaseDurationSeconds", DURATION_SECONDS)))

    def _spec(self, key: str, default: object) -> object:
        value = ((self._record or {}).get("spec") or {}).get(key)
        return default if value is None else value

    def _write(self, *, create: bool) -> Write:
        stamp = micro_time(self._now())
        held = int(str(self._spec("leaseTransitions", 0)))
        epoch = min(max(held if self.leading else held + 1, self._floor), _MAX_TRANSITIONS)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "acquireTime": self._spec("acquireTime", stamp) if self.leading else stamp,
            "renewTime": stamp,
            "leaseTransitions": epoch,
        }
        if create or self._record is None:
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": self._metadata, "spec": spec}
        else:
            body = {**self._record, "spec": {**self._record["spec"], **spec}}
        return Write(body, create=create, epoch=epoch)


def _version(lease: Object | None) -> str:
    return "" if lease is None else str(lease["metadata"].get("resourceVersion"))


def micro_time(moment: dt.datetime) -> str:
    """A MicroTime: always six digits, which isoformat leaves out at zero by default."""
    return moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
