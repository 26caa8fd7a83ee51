# SPDX-License-Identifier: Apache-2.0
"""One worker as the operator knows it: its pod, and what it last said of itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ballast_contract import config, plan_lines
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.view import Obstacle, View
from ballast_operator.reconcile.pods import Pod
from ballast_operator.reconcile.wishes import Model

_SILENCE_SECONDS: Final = 60.0
"""How long a silent worker whose pod is Ready keeps its models, before they are placed elsewhere."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A pod with the report of the process in it.

    `view` is None while the pod has no address. What is not known is None, never False.
    """

    pod: Pod
    view: View | None
    now: float
    """The clock of the reports."""
    leaving: bool = False
    """Its models are to move elsewhere: it is being drained."""

    @property
    def uid(self) -> str:
        """The uid of the pod."""
        return self.pod.uid

    @property
    def name(self) -> str:
        """The name of the pod."""
        return self.pod.name

    @property
    def known(self) -> bool:
        """Whether it ever reported."""
        return self.view is not None and self.view.known

    @property
    def heard(self) -> bool:
        """Whether what it reported holds now."""
        return self.view is not None and self.view.known and not self.view.stale(self.now)

    @property
    def drains(self) -> bool:
        """Whether it says that it was told to end, and waits for leave."""
        return self.view is not None and self.heard and self.view.condition.phase == pb.WORKER_PHASE_DRAINING

    @property
    def silent(self) -> bool:
        """Whether it should be heard and is not: its pod is Ready, so nobody knows what it does now."""
        return self.pod.ready and self.view is not None and self.view.stale(self.now)

    @property
    def obstacle(self) -> Obstacle | None:
        """Why it is not heard, or does not obey, where that is known."""
        return self.view.obstacle if self.view is not None else None

    @property
    def awaited(self) -> bool:
        """Whether its first report is still due and may come any moment: its pod is Ready, so it has been running."""
        return self.pod.ready and self.view is not None and self.view.awaited(self.now)

    @property
    def available(self) -> bool:
        """Whether models may be placed on it; one that fell silent keeps its models for a while if its pod is Ready."""
        if self.view is None or not self.known or not self.pod.live or self.leaving:
            return False
        return self.heard or (self.pod.ready and self.now - self.view.heard_at < _SILENCE_SECONDS)

    def report(self, model: Model) -> pb.ModelState | None:
        """What it last said of a model; a namesake of another object does not count."""
        state = self.view.models.get(model.served_name) if self.view is not None else None
        return state if state is not None and state.object == model.object else None

    def can_call(self, model: Model) -> bool | None:
        """Whether a call of the model would be answered here; None when that is not known."""
        if self.pod.finished or (self.view is None and not self.pod.ip):
            return False
        if self.view is None or not self.heard:  # a new leader that has not dialled it yet knows nothing of it
            return None
        return self.report(model) is not None and self.view.can_call(model.served_name)

    def reached(self, model: Model) -> bool:
        """Whether the worker has come as far with the model as is wished: prepared, or on the wished tier."""
        state = self.report(model)
        if state is None or not self.can_call(model):
            return False
        if model.spec.residency is config.ResidencyWish.DEVICE:
            return state.tier == pb.TIER_DEVICE
        if model.spec.residency is config.ResidencyWish.SYSTEM:
            return state.tier in (pb.TIER_DEVICE, pb.TIER_HOST)
        return True

    @property
    def capacity_bytes(self) -> int | None:
        """Device memory for weights and code together, by the plan in force; None without one."""
        plan = self.view.plan if self.view is not None else None
        if plan is None or not plan.fits:
            return None
        return sum(line.bytes for line in plan.lines if line.line in plan_lines.OF_MODELS)


class Crew:
    """The workers of a pool at one moment, found by name, by uid and by what they report."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = tuple(workers)
        self.by_name = {worker.name: worker for worker in self._workers}
        self.by_uid = {worker.uid: worker for worker in self._workers}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def reporting(self, model: Model) -> list[Worker]:
        """Workers that say something of the model."""
        return [w for w in self._reporting.get(model.served_name, ()) if w.report(model) is not None]

    def involved(self, targets: Collection[str], holders: Collection[str]) -> list[Worker]:
        """Workers of these names or uids that exist, by name."""
        found = {self.by_name[name].uid for name in targets if name in self.by_name}
        found.update(uid for uid in holders if uid in self.by_uid)
        return sorted((self.by_uid[uid] for uid in found), key=lambda w: w.name)

    @cached_property
    def _reporting(self) -> dict[str, list[Worker]]:
        found: dict[str, list[Worker]] = {}
        for worker in self._workers:
            for name in worker.view.models if worker.view is not None and worker.known else ():
                found.setdefault(name, []).append(worker)
        return found
