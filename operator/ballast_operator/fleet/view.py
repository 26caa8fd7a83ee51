# SPDX-License-Identifier: Apache-2.0
"""What one worker last reported, and what a new report changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.channel import Member

HEARTBEAT_LIMIT_SECONDS: Final = 10.0
"""A worker that was not heard from for so long is stale: what it does now is not known."""

CALLABLE: Final = frozenset({pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADING, pb.MODEL_PHASE_LOADED})
"""Phases in which a call would be answered, after a load if need be."""

SERVING: Final = frozenset({pb.WORKER_PHASE_READY, pb.WORKER_PHASE_DRAINING})
"""Phases in which a worker answers calls."""


@dataclass(slots=True)
class Difference:
    """What a report changed, sorted by how soon somebody should look.

    `urgent` and `figures` hold namespace/name of InferenceModels: whether calls arrive, a pinned tier or a failure
    changed; or only the tier of an unpinned model or a size did.
    """

    urgent: set[str] = field(default_factory=set)
    figures: set[str] = field(default_factory=set)
    worker: bool = False
    """Its phase, its plan, its epoch or the accepted generation changed, or it is another process."""
    device: bool = False
    """Its memory figures changed."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a worker that answers is not heard, in terms of the closed list of reasons."""

    reason: Reason
    message: str


class OutOfOrder(Exception):  # noqa: N818 - the answer is to ask for a full state
    """A change does not follow the last message: something was missed."""


class View:
    """The state of one worker as told by its stream. Not thread-safe: one loop owns it."""

    def __init__(self, member: Member, *, now: float, limit: float = HEARTBEAT_LIMIT_SECONDS) -> None:
        self.member = member
        self.limit = limit
        self.instance_id = ""
        self.sequence = 0
        self.epoch = 0
        self.condition = pb.WorkerCondition()
        self.assignment_generation = 0
        self.device: pb.DeviceState | None = None
        self.plan: pb.Plan | None = None
        self.models: dict[str, pb.ModelState] = {}
        self.authorities = ""
        """SHA-256 of the authorities that the worker trusts, as it last said on this stream; empty: not said."""
        self.obstacle: Obstacle | None = None
        """Why nothing is heard from it, or it does not obey, where that is known."""
        self.known = False
        """Whether a full state was ever received."""
        self.heard_at = now
        """When the last message came; before the first, when we began to listen."""

    def stale(self, now: float) -> bool:
        """Whether nothing was heard for longer than the limit."""
        return now - self.heard_at >= self.limit

    def awaited(self, now: float) -> bool:
        """Whether the first report is still due: nothing can be said of the worker, and it is too early to worry."""
        return not self.known and not self.stale(now)

    @property
    def serving(self) -> bool:
        """Whether the worker said that it answers calls."""
        return self.condition.phase in SERVING

    def can_call(self, model: str) -> bool:
        """Whether the worker said that a call of the model would be answered."""
        state = self.models.get(model)
        return self.serving and state is not None and state.phase in CALLABLE

    def take(self, message: pb.WatchResponse, *, now: float) -> Difference:
        """Take one message of the stream.

        Raises:
            OutOfOrder: a change that does not follow the last message of the same process.
        """
        difference = Difference()
        self.heard_at = now
        if message.epoch != self.epoch:
            self.epoch, difference.worker = message.epoch, True
        kind = message.WhichOneof("event")
        if kind == "full":
            self._take_full(message, difference)
        elif kind == "change":
            if message.instance_id != self.instance_id or message.sequence != self.sequence + 1:
                raise OutOfOrder(f"sequence {message.sequence} after {self.sequence}")
            self.sequence = message.sequence
            self._take_change(message.change, difference)
        elif kind == "heartbeat" and message.heartbeat.authorities:
            self.authorities = message.heartbeat.authorities
        return difference

    def _take_full(self, message: pb.WatchResponse, difference: Difference) -> None:
        full = message.full
        difference.worker = difference.device = True
        self.instance_id, self.sequence, self.known = message.instance_id, message.sequence, True
        self.condition, self.assignment_generation = full.condition, full.assignment_generation
        self.device = full.device if full.HasField("device") else None
        self.plan = full.plan if full.HasField("plan") else None
        before, self.models = self.models, {model.name: model for model in full.models}
        difference.urgent |= {m.object for m in (*before.values(), *self.models.values()) if m.object}

    def _take_change(self, change: pb.StateChange, difference: Difference) -> None:
        for model in change.models:
            before = self.models.get(model.name)
            self.models[model.name] = model
            if model.object and (before is None or _urgent(before) != _urgent(model)):
                difference.urgent.add(model.object)
                if before is not None and before.object and before.object != model.object:
                    difference.urgent.add(before.object)
            elif model.object and _figures(before) != _figures(model):
                difference.figures.add(model.object)
        for name in change.removed:
            gone = self.models.pop(name, None)
            if gone is not None and gone.object:
                difference.urgent.add(gone.object)
        if change.HasField("device"):
            self.device, difference.device = change.device, True
        if change.HasField("condition"):
            difference.worker |= change.condition.phase != self.condition.phase
            difference.worker |= change.condition.failure != self.condition.failure
            difference.device = True
            if change.condition.phase != self.condition.phase:  # every model of it can be called now, or not any more
                difference.urgent |= {m.object for m in self.models.values() if m.object}
            self.condition = change.condition
        if change.HasField("assignment_generation"):
            self.assignment_generation, difference.worker = change.assignment_generation, True


def _urgent(model: pb.ModelState) -> tuple[object, ...]:
    pinned = model.residency in (pb.RESIDENCY_DEVICE, pb.RESIDENCY_SYSTEM)
    return (
        model.object,
        model.phase if pinned or model.phase not in CALLABLE else 0,
        model.tier if pinned else None,
        model.residency,
        model.failure.reason,
        model.failure.message,
        model.digest,
        model.weights_bytes,
    )


def _figures(model: pb.ModelState | None) -> tuple[object, ...] | None:
    return None if model is None else (model.tier, model.load_milliseconds, model.scratch_bytes, model.code_bytes)
