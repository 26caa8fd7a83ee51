# SPDX-License-Identifier: Apache-2.0
"""What is where now: the state that admission, loads and compaction share, and the transitions out of the device.

Everything here runs on the device thread.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from ballast_contract.config import ResidencyWish
from ballast_worker.bundle.reader import Bundle
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.residency import priority
from ballast_worker.residency.admission import Excluded, Resident
from ballast_worker.residency.demand import Demand
from ballast_worker.residency.ledger import Ledger
from ballast_worker.residency.protocol import Listener, ResidentModel
from ballast_worker.residency.records import Intents, Model, Phase, Purpose, Weights

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Board:
    """The models, their weights on the device, and who has to be told.

    Invariants:
        `extents` has every set of weights with an extent in the device memory, and the memory has no other.
        `leases` is the sum over `extents`, `pinned` the bytes of the models whose wish is the device.
        While `quiet`, or for weights that are `draining`, no new execution begins.
    """

    memory: DeviceMemory
    demand: Demand
    listener: Listener
    ledger: Ledger
    clock: Callable[[], float]
    models: dict[str, Model]
    extents: dict[str, Weights]
    intents: Intents
    notices: list[Callable[[], None]]
    tickets: itertools.count[int]
    leases: int = 0
    pinned: int = 0
    quiet: bool = False
    flushing: bool = False

    def tell(self, notice: Callable[[], None]) -> None:
        """Remember to call somebody outside, once the state is consistent."""
        self.notices.append(notice)

    def flush(self) -> None:
        """Call whoever has to be told. They may call back, and what comes of it is told by the same loop."""
        if self.flushing:
            return
        self.flushing = True
        try:
            while self.notices:
                self.notices.pop(0)()
        finally:
            self.flushing = False

    def changed(self, model: Model) -> None:
        """Publish a model's state and tell the listener."""
        if self.models.get(model.name) is model:
            self.ledger.report(model)
            self.tell(lambda: self.listener.changed(model.name))

    def ask(self, model: Model, purpose: Purpose) -> None:
        """See that a load for this purpose, or a more urgent one, is under way or in the queue."""
        if model.incoming is not None:
            model.incoming.purpose = min(model.incoming.purpose, purpose)
        elif not model.intent or purpose < model.intended:
            model.asked = self.clock()
            self.intents.push(model, purpose, next(self.tickets))
            self.changed(model)

    def pinned_beside(self, spec: ResidentModel) -> int:
        """Bytes of the pinned models but this one, whether they have been loaded or not."""
        known = self.models.get(spec.name)
        own = known.nbytes if known is not None and known.spec.wish is ResidencyWish.DEVICE else 0
        return self.pinned - own

    def specify(self, model: Model, spec: ResidentModel | None) -> None:
        """Change what is wanted of a model that is known; None: it is known no longer."""
        if model.spec.wish is ResidencyWish.DEVICE:
            self.pinned -= model.nbytes
        if spec is None:
            del self.models[model.name]
            return
        model.spec = spec
        if spec.wish is ResidencyWish.DEVICE:
            self.pinned += model.nbytes

    def add(self, spec: ResidentModel, generation: int) -> Model:
        """Know a model."""
        model = self.models[spec.name] = Model(spec, generation)
        if spec.wish is ResidencyWish.DEVICE:
            self.pinned += model.nbytes
        return model

    def keeps(self, bundle: Bundle) -> bool:
        """Whether a model is to have a host copy of these weights kept."""
        digest = bundle.manifest.weights.digest
        return any(
            model.spec.wish is ResidencyWish.SYSTEM and model.spec.bundle.manifest.weights.digest == digest
            for model in self.models.values()
        )

    def _key(self, weights: Weights, now: float) -> float:
        """The key of weights in the order of eviction."""
        if weights.retired:
            return -math.inf
        model = weights.model
        return priority.key(
            reload_seconds=weights.work_seconds if model.reload_seconds is None else model.reload_seconds,
            nbytes=weights.nbytes,
            uses=model.uses,
            idle_seconds=now - weights.last_use,
        )

    def residents(self) -> list[Resident]:
        """Everything with an extent, in rising order of the keys; among equals the least recently used first."""
        now = self.clock()
        ranked = [
            (self._key(weights, now), weights.last_use, weights.ticket, weights) for weights in self.extents.values()
        ]
        ranked.sort()  # tickets are unique
        return [self._resident(weights, key, now) for key, _, _, weights in ranked]

    def _resident(self, weights: Weights, key: float, now: float) -> Resident:
        model = weights.model
        queued = self.demand.queued(model.name) > 0
        if weights.retired:
            excluded = Excluded.EXECUTING
        elif weights.phase is not Phase.READY:
            excluded = Excluded.LOADING
        elif model.spec.wish is ResidencyWish.DEVICE:
            excluded = Excluded.PINNED
        elif weights.unused and queued:
            excluded = Excluded.LEASED
        elif now < weights.stays_until:
            excluded = Excluded.RECENT
        elif weights.leases or self.demand.executing(model.name):
            excluded = Excluded.EXECUTING
        else:
            excluded = Excluded.NOT
        return Resident(weights.extent, model.name, weights.nbytes, key, queued, excluded)

    def evict(self, resident: Resident) -> None:
        """Free a resident to make room."""
        weights = self.extents[resident.extent]
        weights.model.evictions += 1
        age = self.clock() - weights.last_use
        self.ledger.evicted(age_seconds=age)
        self.free(weights)
        self.log("evict", weights, idle_seconds=age)

    def log(self, what: str, weights: Weights, **seconds: float) -> None:
        """Say at DEBUG what happened to weights, and how the device memory lies now."""
        if not _log.isEnabledFor(logging.DEBUG):
            return
        memory = self.memory.statistics()
        figures = {
            "bytes": weights.nbytes,
            "in_use": memory.in_use,
            "largest_free": memory.largest_free,
            "fragmentation": memory.fragmentation,
            **seconds,
        }
        extra = {"event": f"weight.{what}", "model": weights.model.name, **figures}
        _log.debug("weight %s: %s", what, weights.model.name, extra=extra)

    def free(self, weights: Weights) -> None:
        """Free live weights from which nothing executes."""
        model = weights.model
        self._leave(weights)
        model.live = None
        if model.deferred:
            # Requests were told that it is loading: now it has to be.
            model.deferred = False
            model.wanted = True
            self.ask(model, Purpose.WANTED)
        self.changed(model)

    def retire(self, weights: Weights) -> None:
        """Let weights serve no longer; they leave now, or with the last execution from them."""
        weights.retired = True
        if not weights.leases:
            self._leave(weights)

    def released(self, weights: Weights) -> None:
        """An execution has given its lease back."""
        weights.leases -= 1
        self.leases -= 1
        if weights.retired and not weights.leases:
            self._leave(weights)

    def abandon(self, weights: Weights) -> None:
        """Take back the extent of weights that are not complete, if they have one."""
        if weights.placed:
            weights.placed = False
            self.memory.abandon(weights.extent)
            del self.extents[weights.extent]
        self._gone(weights)

    def _leave(self, weights: Weights) -> None:
        self.memory.release(weights.extent)
        del self.extents[weights.extent]
        self._gone(weights)

    def _gone(self, weights: Weights) -> None:
        if weights.gone is not None:
            self.tell(weights.gone)
            weights.gone = None
