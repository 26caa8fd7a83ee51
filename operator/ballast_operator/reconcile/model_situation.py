# SPDX-License-Identifier: Apache-2.0
"""Everything that the status of an InferenceModel is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile.bundles import Bundle
from ballast_operator.reconcile.rollout import Rollout
from ballast_operator.reconcile.wishes import Model, Rejection
from ballast_operator.reconcile.workers import Worker


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a model's status is made of.

    `workers` are those that have it or are to have it; `targets` names of pods that placement chose; `refused` verdicts of workers on their
    assignments, by uid; `obstacle` why nothing could be placed; `conflict` what stands where the Service at which it is called should.
    """

    verdict: Model | Rejection
    workers: Sequence[Worker] = ()
    targets: Sequence[str] = ()
    rollout: Rollout = field(default_factory=Rollout)
    refused: Mapping[str, pb.Failure] = field(default_factory=dict)
    obstacle: Rejection | None = None
    crowding: str = ""
    """That it is swapped, because not everything on its worker fits at once."""
    conflict: str = ""
    leftover: str = ""
    """Why something of its own address that nobody should call any more is still there."""
    bundle: Bundle | None = None
    unknown_fields: Sequence[str] = ()
    paused: bool = False
    own_address: bool = True


@dataclass(frozen=True, slots=True)
class Copy:
    """One wanted copy."""

    worker: Worker
    report: pb.ModelState | None
    failure: pb.Failure | None
    reached: bool
    answers: bool | None

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.worker.name


def wanted_copies(now: Situation, model: Model) -> list[Copy]:
    """The copies that placement chose, on pods that exist."""
    found = []
    for worker in sorted((w for w in now.workers if w.name in now.targets), key=lambda w: w.name):
        report = worker.report(model)
        failure = report.failure if report is not None and report.failure.reason else None
        if failure is None:
            failure = now.refused.get(worker.uid)
        found.append(Copy(worker, report, failure, worker.reached(model), worker.can_call(model)))
    return found


def answering(now: Situation, model: Model) -> list[Worker]:
    """Workers to which calls go and that answer them, as they and their pods say."""
    serving = set(now.rollout.serve)
    return [w for w in now.workers if w.uid in serving and w.can_call(model) and (w.pod.ready or w.pod.terminating)]
