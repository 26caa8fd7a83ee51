# SPDX-License-Identifier: Apache-2.0
"""The status of an InferenceModel: from what was judged, placed and reported to what a person reads. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ballast_contract import config, names, quantities
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.common import Tier
from ballast_operator.api.inferencemodel import MAX_REPORTED_WORKERS
from ballast_operator.fleet.view import SERVING
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.bundles import Bundle
from ballast_operator.reconcile.conditions import Fact, keep, no, timestamp, unknown, yes
from ballast_operator.reconcile.pods import Trouble, worst
from ballast_operator.reconcile.rollout import Rollout
from ballast_operator.reconcile.wishes import Model, Rejection
from ballast_operator.reconcile.workers import Worker

Status = dict[str, Any]

TIERS: Final[Mapping[int, Tier]] = {
    pb.TIER_NONE: Tier.NONE,
    pb.TIER_HOST: Tier.HOST,
    pb.TIER_DEVICE: Tier.DEVICE,
}
_WORST_FIRST: Final = (Tier.NONE, Tier.HOST, Tier.DEVICE)

_PROGRESS: Final = {
    pb.MODEL_PHASE_PENDING: (Reason.PENDING, "the worker has not begun"),
    pb.MODEL_PHASE_BUILDING: (Reason.MEASURING, "executables are being compiled, run once and measured"),
    pb.MODEL_PHASE_PREPARED: (Reason.LOADING, "prepared; the weights are not on the wished tier yet"),
    pb.MODEL_PHASE_LOADING: (Reason.LOADING, "weights are on their way"),
    pb.MODEL_PHASE_LOADED: (Reason.LOADING, "the weights are not on the wished tier yet"),
}


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a model's status is made of.

    `workers` are all of the pool; `targets` names of pods that placement chose; `refused` verdicts of workers on their
    assignments, by uid; `obstacle` why nothing could be placed; `conflict` what stands where the model's Service should.
    """

    verdict: Model | Rejection
    workers: Sequence[Worker] = ()
    targets: Sequence[str] = ()
    rollout: Rollout = field(default_factory=Rollout)
    refused: Mapping[str, pb.Failure] = field(default_factory=dict)
    obstacle: Rejection | None = None
    conflict: str = ""
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


def facts(now: Situation, existing: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    """The conditions of a model."""
    degraded = _dropped(now.unknown_fields)
    if isinstance(now.verdict, Rejection):
        refusal = no(now.verdict.reason, now.verdict.message)
        return _ordered(refusal, refusal, refusal, refusal, degraded or no(Reason.AS_EXPECTED))
    accepted = (
        yes(Reason.PAUSED, "nothing is changed while the pause annotation is there")
        if now.paused
        else yes(Reason.ACCEPTED)
    )
    model = now.verdict
    if model.spec.replicas == 0:
        nothing = no(Reason.NOT_REQUESTED, "spec.replicas is 0")
        return _ordered(accepted, nothing, nothing, nothing, degraded or no(Reason.AS_EXPECTED))
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
    return _ordered(accepted, placed, loaded, ready, degraded or no(Reason.AS_EXPECTED))


def body(now: Situation, existing: Status, *, moment: dt.datetime) -> Status:
    """Everything of the status but its conditions, observedGeneration and assignment."""
    model = now.verdict
    found: Status = {}
    if isinstance(existing.get("lastFailure"), dict):
        found["lastFailure"] = existing["lastFailure"]
    if isinstance(model, Rejection):
        return found
    copies = wanted_copies(now, model)
    found["replicas"] = len(copies)
    if not any(w.silent for w in now.workers if w.uid in now.rollout.serve):
        found["readyReplicas"] = len(_answering(now, model))
    found["address"] = _address(model, own=now.own_address and not now.conflict)
    if any(copy.worker.awaited for copy in copies):
        kept = ("residency", "readyReplicas", "workers", "workersTotal", "workerNames", "size", "loadMilliseconds")
        return found | {key: existing[key] for key in kept if key in existing}
    tiers = [_tier(copy) for copy in copies]
    if tiers and None not in tiers:
        found["residency"] = min((t for t in tiers if t is not None), key=_WORST_FIRST.index).value
    found |= _listed(now, model)
    size = _size(now, model)
    if size:
        found["size"] = size
    loads = [
        c.report.load_milliseconds for c in copies if c.report is not None and c.report.HasField("load_milliseconds")
    ]
    if loads:
        found["loadMilliseconds"] = max(loads)
    failure = _failure(copies)
    if failure is not None and any(existing.get("lastFailure", {}).get(k) != v for k, v in failure.items()):
        found["lastFailure"] = failure | {"time": timestamp(moment)}
    return found


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


def _ordered(accepted: Fact, placed: Fact, loaded: Fact, ready: Fact, degraded: Fact) -> dict[str, Fact]:
    return {"Accepted": accepted, "Placed": placed, "Loaded": loaded, "Ready": ready, "Degraded": degraded}


def _dropped(sentences: Sequence[str]) -> Fact | None:
    if not sentences:
        return None
    return yes(Reason.UNKNOWN_FIELD, "applied, and dropped by the API server: " + "; ".join(sentences))


def _placed(now: Situation, model: Model, copies: Sequence[Copy]) -> Fact:
    alive = [copy for copy in copies if copy.worker.pod.live]
    if alive and now.obstacle is None:
        return yes(Reason.PLACED, "on " + _list([copy.name for copy in alive]))
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


def _answering(now: Situation, model: Model) -> list[Worker]:
    serving = set(now.rollout.serve)
    return [w for w in now.workers if w.uid in serving and w.can_call(model) and (w.pod.ready or w.pod.terminating)]


def _ready(now: Situation, model: Model, loaded: Fact, placed: Fact) -> Fact:
    if now.conflict:
        return no(Reason.SERVICE_CONFLICT, now.conflict)
    answering = _answering(now, model)
    if answering:
        wanted = max(len(now.targets), 1)
        return yes(Reason.READY, f"{len(answering)} of {wanted} copies answer")
    serving = [w for w in now.workers if w.uid in now.rollout.serve]
    silent = [w.name for w in serving if w.silent]
    if silent:
        return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from {_list(silent)}")
    unready = [w for w in serving if not w.pod.ready and w.can_call(model) is not False]
    if unready:
        trouble = worst(w.pod.trouble for w in unready if w.pod.trouble is not None)
        cause = trouble or Trouble(Reason.WORKERS_STARTING, f"pod {_list([w.name for w in unready])} is not Ready")
        return no(cause.reason, cause.message)
    fact = placed if not placed.holds else loaded
    if fact.holds:
        return no(Reason.WORKERS_STARTING, "no worker says that it would answer a call")
    return Fact("False" if fact.status == "False" else "Unknown", fact.reason, fact.message)


def _degraded(now: Situation, model: Model, copies: Sequence[Copy], ready: Fact) -> Fact:
    if now.conflict:
        return yes(Reason.SERVICE_CONFLICT, now.conflict)
    for copy in copies:
        if copy.failure is not None:
            return yes(_word(copy.failure.reason), f"worker {copy.name}: {copy.failure.message}")
    if now.obstacle is not None and copies:
        return yes(now.obstacle.reason, now.obstacle.message)
    if (
        now.bundle is not None
        and now.bundle.rejection is not None
        and now.bundle.rejection.reason is not Reason.PENDING
    ):
        return yes(now.bundle.rejection.reason, now.bundle.rejection.message)
    answering = len(_answering(now, model))
    if ready.holds and answering < len(now.targets):
        return yes(Reason.WORKERS_STARTING, f"{answering} of {len(now.targets)} copies answer")
    return no(Reason.AS_EXPECTED)


def _tier(copy: Copy) -> Tier | None:
    if not copy.worker.heard:
        return None
    return TIERS.get(copy.report.tier) if copy.report is not None else Tier.NONE


def _listed(now: Situation, model: Model) -> Status:
    shown = [w for w in now.workers if w.name in now.targets or w.uid in now.rollout.hold]
    shown.sort(key=lambda w: w.name)
    entries = [_entry(w, model) for w in shown[:MAX_REPORTED_WORKERS]]
    listed = ",".join(entry["name"] for entry in entries)
    found: Status = {"workers": entries, "workersTotal": len(shown)}
    if listed:
        found["workerNames"] = listed
    return found


def _entry(worker: Worker, model: Model) -> Status:
    entry: Status = {"name": worker.name}
    if worker.pod.node:
        entry["node"] = worker.pod.node
    report = worker.report(model)
    if report is None or not worker.heard:
        return entry
    tier = TIERS.get(report.tier)
    if tier is not None:
        entry["tier"] = tier.value
        entry["bytes"] = quantities.ceil_api(report.weights_bytes if tier is not Tier.NONE else 0)
    if report.digest:
        entry["digest"] = report.digest
    return entry


def _size(now: Situation, model: Model) -> Status:
    reports = [r for w in now.workers if (r := w.report(model)) is not None]
    weights = max((r.weights_bytes for r in reports), default=0)
    largest = max((r.largest_tensor_bytes for r in reports), default=0)
    if not weights and now.bundle is not None:
        weights, largest = now.bundle.weights_bytes, now.bundle.largest_tensor_bytes
    if not weights:
        return {}
    found: Status = {"weights": quantities.ceil_api(weights), "largestTensor": quantities.ceil_api(largest)}
    scratch = [r.scratch_bytes for r in reports if r.HasField("scratch_bytes")]
    code = [r.code_bytes for r in reports if r.HasField("code_bytes")]
    if scratch:
        found["scratch"] = quantities.ceil_api(max(scratch))
    if code:
        found["code"] = quantities.ceil_api(max(code))
    found["measured"] = bool(scratch and code)
    return found


def _failure(copies: Sequence[Copy]) -> Status | None:
    for copy in copies:
        if copy.failure is not None:
            found: Status = {
                "reason": copy.failure.reason,
                "message": copy.failure.message[:4096],
                "worker": copy.name,
            }
            if copy.failure.HasField("exit_code"):
                found["exitCode"] = copy.failure.exit_code
            return found
    for copy in copies:
        trouble: Trouble | None = copy.worker.pod.trouble
        if trouble is not None and trouble.exit_code is not None:
            return {
                "reason": trouble.reason.value,
                "message": trouble.message,
                "worker": copy.name,
                "exitCode": trouble.exit_code,
            }
    return None


def _address(model: Model, *, own: bool) -> Status:
    service = model.name if own else naming.pool_service(model.spec.budget_ref.name)
    host = f"{service}.{model.namespace}.svc"
    return {"http": f"http://{host}:{names.HTTP_PORT}", "grpc": f"{host}:{names.GRPC_PORT}"}


def _word(text: str, default: Reason = Reason.UNKNOWN) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        return default


def _list(words: Sequence[str]) -> str:
    shown = ", ".join(words[:3])
    return shown if len(words) <= 3 else f"{shown} and {len(words) - 3} more"
