# SPDX-License-Identifier: Apache-2.0
"""The conditions of an InferenceModel. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_contract import config
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.view import SERVING
from ballast_operator.reconcile.conditions import Fact, keep, no, unknown, yes
from ballast_operator.reconcile.model_situation import Copy, Situation, answering, wanted_copies
from ballast_operator.reconcile.pods import Trouble, worst
from ballast_operator.reconcile.wishes import Model, Rejection

_PROGRESS: Final = {
    pb.MODEL_PHASE_PENDING: (Reason.PENDING, "the worker has not begun"),
    pb.MODEL_PHASE_BUILDING: (Reason.MEASURING, "executables are being compiled, run once and measured"),
    pb.MODEL_PHASE_PREPARED: (Reason.LOADING, "prepared; the weights are not on the wished tier yet"),
    pb.MODEL_PHASE_LOADING: (Reason.LOADING, "weights are on their way"),
    pb.MODEL_PHASE_LOADED: (Reason.LOADING, "the weights are not on the wished tier yet"),
}


def facts(now: Situation, existing: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    """The conditions of a model."""
    degraded = _dropped(now.unknown_fields)
    if degraded is None and now.conflict:
        degraded = yes(Reason.SERVICE_CONFLICT, now.conflict)
    if isinstance(now.verdict, Rejection):
        refusal = no(now.verdict.reason, now.verdict.message)
        return _ordered(refusal, refusal, refusal, refusal, degraded or _left(now))
    accepted = (
        yes(Reason.PAUSED, "nothing is changed while the pause annotation is there")
        if now.paused
        else yes(Reason.ACCEPTED)
    )
    model = now.verdict
    if model.spec.replicas == 0 and not (now.paused and now.targets):
        nothing = no(Reason.NOT_REQUESTED, "spec.replicas is 0")
        return _ordered(accepted, nothing, nothing, nothing, degraded or _left(now))
    copies = wanted_copies(now, model)
    placed = _placed(now, model, copies)
    if any(copy.worker.awaited for copy in copies):  # too early to say: a new leader asks its workers first
        early = unknown(Reason.UNKNOWN, "the operator waits for the workers' first reports")
        loaded, ready = keep(existing, "Loaded") or early, keep(existing, "Ready") or early
        degraded = degraded or keep(existing, "Degraded")
    else:
        loaded = _loaded(model, copies, placed)
        ready = _ready(now, model, loaded, placed)
        degraded = degraded or _degraded(now, model, copies, ready)
    return _ordered(accepted, placed, loaded, ready, degraded or _left(now))


def _ordered(accepted: Fact, placed: Fact, loaded: Fact, ready: Fact, degraded: Fact) -> dict[str, Fact]:
    return {"Accepted": accepted, "Placed": placed, "Loaded": loaded, "Ready": ready, "Degraded": degraded}


def _dropped(sentences: Sequence[str]) -> Fact | None:
    if not sentences:
        return None
    return yes(Reason.UNKNOWN_FIELD, "applied, and dropped by the API server: " + "; ".join(sentences))


def _left(now: Situation) -> Fact:
    """What is said when nothing else is wrong."""
    return yes(Reason.SERVICE_CONFLICT, now.leftover) if now.leftover else no(Reason.AS_EXPECTED)


def _placed(now: Situation, model: Model, copies: Sequence[Copy]) -> Fact:
    alive = [copy for copy in copies if copy.worker.pod.live]
    if alive and now.obstacle is None:
        crowding = f"; {now.crowding}" if now.crowding else ""
        return yes(Reason.PLACED, "on " + _listing([copy.name for copy in alive]) + crowding)
    if now.obstacle is not None:
        return no(now.obstacle.reason, now.obstacle.message)
    return no(Reason.WORKERS_STARTING, f"no worker of WeightBudget '{model.spec.budget_ref.name}' can take models yet")


def _loaded(model: Model, copies: Sequence[Copy], placed: Fact) -> Fact:
    if not copies:
        return no(placed.reason, placed.message)
    late = [copy for copy in copies if not copy.reached]
    if not late:
        good = Reason.PREPARED if model.spec.residency is config.ResidencyWish.UNPINNED else Reason.LOADED
        return yes(good, f"on {len(copies)} of {len(copies)} workers")
    for copy in late:
        if copy.worker.silent:
            return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from worker {copy.name}")
    broken = min((copy for copy in late if copy.failure is not None), key=lambda c: c.name, default=None)
    if broken is not None and broken.failure is not None:
        return no(_word(broken.failure.reason), f"worker {broken.name}: {broken.failure.message}")
    return _progress(late[0])


def _progress(copy: Copy) -> Fact:
    worker, report = copy.worker, copy.report
    trouble = worker.pod.trouble
    if not worker.heard:
        cause = trouble or Trouble(Reason.WORKERS_STARTING, f"pod {copy.name} is not Ready")
        return no(cause.reason, cause.message)
    if worker.view is not None and worker.view.condition.phase not in SERVING:
        condition = worker.view.condition
        if condition.phase == pb.WORKER_PHASE_REFUSED:
            return no(
                _word(condition.failure.reason, Reason.PLAN_REFUSED), f"worker {copy.name}: {condition.failure.message}"
            )
        if report is None or report.phase not in _PROGRESS:
            return no(Reason.WORKERS_STARTING, f"worker {copy.name}: {condition.message or 'starting'}")
    if report is None:
        return no(Reason.PENDING, f"worker {copy.name} has not taken the model up yet")
    reason, text = _PROGRESS.get(report.phase, (Reason.PENDING, "the worker says nothing of it yet"))
    return no(reason, f"worker {copy.name}: {report.message or text}")


def _ready(now: Situation, model: Model, loaded: Fact, placed: Fact) -> Fact:
    if now.conflict:
        return no(Reason.SERVICE_CONFLICT, now.conflict)
    count = len(answering(now, model))
    if count:
        return yes(Reason.READY, f"{count} of {max(len(now.targets), 1)} copies answer")
    serving = [w for w in now.workers if w.uid in now.rollout.serve]
    silent = [w.name for w in serving if w.silent]
    if silent:
        return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from {_listing(silent)}")
    unready = [w for w in serving if not w.pod.ready and w.can_call(model) is not False]
    if unready:
        trouble = worst(w.pod.trouble for w in unready if w.pod.trouble is not None)
        cause = trouble or Trouble(Reason.WORKERS_STARTING, f"pod {_listing([w.name for w in unready])} is not Ready")
        return no(cause.reason, cause.message)
    fact = placed if not placed.holds else loaded
    if fact.holds:
        return no(Reason.WORKERS_STARTING, "no worker says that it would answer a call")
    return Fact("False" if fact.status == "False" else "Unknown", fact.reason, fact.message)


def _degraded(now: Situation, model: Model, copies: Sequence[Copy], ready: Fact) -> Fact | None:
    for copy in copies:
        if copy.failure is not None:
            return yes(_word(copy.failure.reason), f"worker {copy.name}: {copy.failure.message}")
    if now.obstacle is not None and now.obstacle.reason is not Reason.NOT_REQUESTED and copies:
        return yes(now.obstacle.reason, now.obstacle.message)
    if (
        now.bundle is not None
        and now.bundle.rejection is not None
        and now.bundle.rejection.reason is not Reason.PENDING
    ):
        return yes(now.bundle.rejection.reason, now.bundle.rejection.message)
    count = len(answering(now, model))
    if ready.holds and count < len(now.targets):
        return yes(Reason.WORKERS_STARTING, f"{count} of {len(now.targets)} copies answer")
    return None


def _word(text: str, default: Reason = Reason.UNKNOWN) -> Reason:
    """A reason that a worker gave; one of another release becomes the default."""
    try:
        return Reason(text)
    except ValueError:
        return default


def _listing(words: Sequence[str]) -> str:
    """The first three of some names, and how many more there are."""
    shown = ", ".join(words[:3])
    return shown if len(words) <= 3 else f"{shown} and {len(words) - 3} more"
