# SPDX-License-Identifier: Apache-2.0
"""What residency keeps of each model and of each set of its weights, and in which order loads begin."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from ballast_worker.bundle.reader import Bundle
from ballast_worker.host.store import Transfer
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import ResidentModel


class Purpose(IntEnum):
    """Why a load is made; lower ones begin first."""

    PINNED = 0
    WANTED = 1
    RELOAD = 2
    """It comes back after a compaction."""
    REPLACE = 3
    """A new bundle, beside the old one."""
    FILL = 4
    """It fits into memory that is free."""
    HOST = 5
    """Only a copy in host memory, which every other purpose brings too."""

    @property
    def evicts(self) -> bool:
        """Whether others may go for it."""
        return self in (Purpose.PINNED, Purpose.WANTED, Purpose.REPLACE)

    @property
    def largest_first(self) -> bool:
        """Whether loads of this purpose begin in order of their size, which packs tightest."""
        return self in (Purpose.PINNED, Purpose.RELOAD, Purpose.FILL)


class Phase(Enum):
    """How far a set of weights has come."""

    FETCHING = "fetching"
    """The file pool gets hold of a host copy or stream."""
    WAITING = "waiting"
    """It has a transfer and waits for room on the device."""
    FILLING = "filling"
    READY = "ready"


@dataclass(slots=True, eq=False)
class Weights:
    """One set of weights, on its way to the device or on it. A model has two while its bundle is replaced.

    Attributes:
        extent: key in the device memory, the same for the same bytes of a model while it is registered.
        model: whose they are.
        purpose: why they are loaded.
        ticket: order among loads.
        started: when the load was asked for, on the monotonic clock.
        placed: they have an extent.
        transfer: the host side, from WAITING to the end of FILLING.
        work_seconds: what fetching and filling took, without waiting for a thread or for room.
        evicted: models that went for them.
        moved: bytes that slid for them.
        leases: executions that hold them.
        last_use: end of the last execution, or of the load.
        unused: loaded for a request, and nobody has executed from them yet.
        stays_until: end of the minimum residence.
        draining: no new execution may begin, so that they can go.
        retired: they go as soon as nothing executes from them.
        cancelled: the load is of no use any more.
        gone: called when they have left the device, or the load has ended without them.
    """

    extent: str
    model: Model
    bundle: Bundle
    purpose: Purpose
    ticket: int
    started: float
    phase: Phase = Phase.FETCHING
    placed: bool = False
    transfer: Transfer | None = None
    work_seconds: float = 0.0
    evicted: list[str] = field(default_factory=list)
    moved: int = 0
    told_waiting: bool = False
    leases: int = 0
    last_use: float = 0.0
    unused: bool = False
    stays_until: float = 0.0
    draining: bool = False
    retired: bool = False
    cancelled: bool = False
    gone: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the extent."""
        return self.bundle.layout.nbytes


@dataclass(slots=True, eq=False)
class Model:
    """A registered model.

    Attributes:
        spec: what is wanted of it now.
        generation: tells registrations of one name apart.
        live: the weights that serve.
        incoming: the weights that are being loaded.
        intent: a load that has not begun, by its ticket; 0: none.
        intended: its purpose.
        asked: when that load was asked for, on the monotonic clock.
        wanted: requests wait, and the listener will be told.
        deferred: it is on the device, but was reported as loading because nothing may execute from it now.
        kept: a host copy is kept for it.
        load_seconds: of the last load, decision to callable.
        reload_seconds: moving average of what loads take without waiting for a thread or for room.
        refusal: of the last load.
        failures: loads that have failed in a row.
        retry_at: no load before this time.
        evictions: how often it left the device to make room.
        uses: executions, on the device now or before, each faded up to the last one (see `priority.faded`).
        last_use: end of the last execution, on the monotonic clock.
    """

    spec: ResidentModel
    generation: int
    live: Weights | None = None
    incoming: Weights | None = None
    intent: int = 0
    intended: Purpose = Purpose.HOST
    asked: float = 0.0
    wanted: bool = False
    deferred: bool = False
    kept: bool = False
    load_seconds: float | None = None
    reload_seconds: float | None = None
    refusal: Refusal | None = None
    failures: int = 0
    retry_at: float = 0.0
    evictions: int = 0
    uses: float = 0.0
    last_use: float = 0.0

    @property
    def name(self) -> str:
        """What clients call."""
        return self.spec.name

    @property
    def nbytes(self) -> int:
        """Bytes of its weights in an extent."""
        return self.spec.bundle.layout.nbytes


class Intents:
    """Loads that have not begun: requests in order of arrival, the rest by purpose and then size or arrival."""

    def __init__(self) -> None:
        # Entries are (order, ticket, model, purpose); one is dead when the model's intent is not its ticket.
        self._wanted: list[tuple[tuple[int, int], int, Model, Purpose]] = []
        self._others: list[tuple[tuple[int, int], int, Model, Purpose]] = []

    def push(self, model: Model, purpose: Purpose, ticket: int) -> None:
        """Add or change the model's one intent."""
        model.intent, model.intended = ticket, purpose
        order = (purpose.value, -model.nbytes if purpose.largest_first else ticket)
        heap = self._wanted if purpose is Purpose.WANTED else self._others
        heapq.heappush(heap, (order, ticket, model, purpose))

    def pop(self, *, wanted: bool) -> tuple[Model, Purpose, int] | None:
        """The next model that requests wait for, or the next of the others; None when there is none."""
        heap = self._wanted if wanted else self._others
        while heap:
            _, ticket, model, purpose = heapq.heappop(heap)
            if model.intent == ticket:
                model.intent = 0
                return model, purpose, ticket
        return None
