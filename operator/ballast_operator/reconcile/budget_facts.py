# SPDX-License-Identifier: Apache-2.0
"""The conditions of a WeightBudget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_contract import quantities
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.view import SERVING
from ballast_operator.reconcile.budget_situation import (
    Situation,
    fragmentation_percent,
    impaired,
    leaking,
    ready_workers,
)
from ballast_operator.reconcile.conditions import Fact, keep, no, unknown, yes
from ballast_operator.reconcile.pods import worst
from ballast_operator.reconcile.wishes import Rejection
from ballast_operator.reconcile.workers import Worker

FRAGMENTED_SECONDS: Final = 60.0
"""How long device memory has to be in pieces before it is said."""

_TOLD: Final = ("PlanFits", "WorkersReady", "Fragmented", "Degraded", "Ready")
"""Conditions that hang on what workers tell."""


def facts(now: Situation, existing: Sequence[Mapping[str, Any]] = ()) -> dict[str, Fact]:
    """The conditions of a budget.

    What hangs on a worker whose first report is due any moment stays as it is in `existing`: a new leader asks first.
    """
    if isinstance(now.verdict, Rejection):
        accepted = no(now.verdict.reason, now.verdict.message)
    elif now.paused:
        accepted = yes(Reason.PAUSED, "nothing is changed while the pause annotation is there")
    else:
        accepted = yes(Reason.ACCEPTED)
    plan, workers = _plan_fits(now), _workers_ready(now)
    found = {
        "Accepted": accepted,
        "PlanFits": plan,
        "WorkersReady": workers,
        "Fragmented": _fragmented(now),
        "UpToDate": _up_to_date(now),
        "Degraded": _degraded(now, workers),
        "Ready": _ready(now, accepted, workers),
    }
    if accepted.holds and any(worker.awaited for worker in now.workers):
        found |= {type_: held for type_ in _TOLD if (held := keep(existing, type_)) is not None}
    return found


def _plan_fits(now: Situation) -> Fact:
    known = [w for w in now.workers if w.pod.live and w.known]
    reporting = [w for w in known if w.heard]
    for worker in reporting:
        view = worker.view
        if view is None:
            continue
        if view.condition.phase == pb.WORKER_PHASE_REFUSED or (
            view.plan is not None and view.plan.lines and not view.plan.fits
        ):
            text = view.condition.failure.message or _shortfall(view.plan)
            return no(_own_reason(view.condition), f"worker {worker.name}: {text}")
    fitting = [w for w in reporting if w.view is not None and w.view.plan is not None and w.view.plan.fits]
    silent = [w for w in known if w.silent]
    if silent:
        return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from {_names(silent)}")
    if fitting:
        return yes(Reason.PLAN_FITS, f"on {len(fitting)} of {len(reporting)} workers that report")
    if reporting:
        return unknown(Reason.MEASURING, "no worker has made its plan yet")
    if known:
        return unknown(Reason.WORKERS_STARTING, f"nothing is heard from {_names(known)}, whose pods are not Ready")
    if not (isinstance(now.verdict, Rejection) or now.verdict.workers.replicas):
        return unknown(Reason.NOT_REQUESTED, "spec.workers.replicas is 0")
    return unknown(Reason.WORKERS_STARTING, "no worker has reported yet")


def _own_reason(condition: pb.WorkerCondition, *, otherwise: Reason = Reason.PLAN_REFUSED) -> Reason:
    """What a worker itself says is wrong; it may be of another release."""
    try:
        return Reason(condition.failure.reason)
    except ValueError:
        return otherwise


def _shortfall(plan: pb.Plan | None) -> str:
    if plan is None:
        return "the plan does not fit"
    cures = ", or ".join(f"{k.key} to {k.value} (now {k.current or 'unset'})" for k in plan.knobs)
    return f"{quantities.human(plan.shortfall_bytes)} are missing: set {cures}" if cures else "the plan does not fit"


def _workers_ready(now: Situation) -> Fact:
    if isinstance(now.verdict, Rejection):
        return no(now.verdict.reason, now.verdict.message)
    wanted = now.verdict.workers.replicas
    live = [w for w in now.workers if w.pod.live]
    ready = ready_workers(now.workers)
    if wanted == 0:
        return no(Reason.NOT_REQUESTED, "spec.workers.replicas is 0")
    if len(ready) >= wanted:
        return yes(Reason.READY, f"{len(ready)} of {wanted} workers")
    for worker in live:
        if worker.obstacle is not None:
            return unknown(worker.obstacle.reason, f"worker {worker.name}: {worker.obstacle.message}")
    silent = [w for w in live if w.silent]
    if silent:
        return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from {_names(silent)}")
    if now.conflict:
        return no(Reason.SERVICE_CONFLICT, now.conflict)
    trouble = now.creation or worst(
        w.pod.trouble for w in now.workers if w.pod.trouble is not None and not w.pod.terminating
    )
    counted = f"{len(ready)} of {wanted} workers are ready"
    if trouble is not None:
        return no(trouble.reason, f"{counted}; {trouble.message}")
    for worker in live:
        condition = worker.view.condition if worker.view is not None and worker.known else None
        if condition is not None and condition.phase == pb.WORKER_PHASE_REFUSED:
            return no(_own_reason(condition), f"{counted}; worker {worker.name}: {condition.failure.message}")
        if condition is not None and condition.phase not in SERVING:
            return no(Reason.WORKERS_STARTING, f"{counted}; worker {worker.name}: {condition.message or 'starting'}")
    return no(Reason.WORKERS_STARTING, counted)


def _fragmented(now: Situation) -> Fact:
    known = [w for w in now.workers if w.pod.live and w.view is not None and w.view.device is not None]
    if not known:
        return unknown(Reason.UNKNOWN, "no worker has reported its device memory yet")
    silent = [w for w in known if w.silent]
    if silent:
        return unknown(Reason.HEARTBEAT_STALE, f"nothing is heard from {_names(silent)}")
    measured = [w for w in known if w.heard]
    if not measured:
        return unknown(Reason.WORKERS_STARTING, f"nothing is heard from {_names(known)}, whose pods are not Ready")
    for worker in sorted(measured, key=lambda w: w.name):
        since = now.fragmented_since.get(worker.uid)
        if since is not None and now.now - since >= FRAGMENTED_SECONDS and worker.view is not None:
            return yes(Reason.FRAGMENTED, _pieces(worker))
    return no(Reason.NOT_FRAGMENTED)


def _pieces(worker: Worker) -> str:
    device = worker.view.device if worker.view is not None else None
    if device is None:
        return ""
    waits = ""
    if device.largest_waiting_bytes:
        waits = f", and {quantities.human(device.largest_waiting_bytes)} wait for room"
    percent = fragmentation_percent(device.free_bytes, device.largest_free_bytes) // 5 * 5
    return (
        f"worker {worker.name}: the largest free block is less than the free memory by {percent} % or more{waits}; ask for a "
        "compaction with the annotation ballast.dev/compact, or set spec.placement.compaction.mode"
    )


def _up_to_date(now: Situation) -> Fact:
    if now.wanted is None:
        return unknown(Reason.UNKNOWN)
    live = [w.pod for w in now.workers if w.pod.live]
    going = [pod for pod in live if now.wanted.outdated(pod)]
    if going and now.blocked:
        return no(Reason.UPDATE_BLOCKED, now.blocked)
    if going:
        return no(Reason.PENDING, f"{len(going)} of {len(live)} workers are still to be replaced")
    older = [pod for pod in live if pod.template_hash != now.wanted.template_hash]
    if older:
        return no(
            Reason.UPDATE_AVAILABLE,
            f"{len(older)} of {len(live)} workers run an earlier template: ask for the update with the annotation "
            "ballast.dev/update",
        )
    return yes(Reason.UP_TO_DATE)


def _degraded(now: Situation, workers: Fact) -> Fact:
    if now.unknown_fields:
        dropped = "; ".join(now.unknown_fields)
        return yes(Reason.UNKNOWN_FIELD, f"applied, and dropped by the API server: {dropped}")
    if now.stale_definitions:
        lacking = ", ".join(now.stale_definitions[:5])
        return yes(
            Reason.UNKNOWN_FIELD,
            f"the installed definitions are of another release and lack {lacking}: apply crds/*.yaml of this one",
        )
    if now.conflict:
        return yes(Reason.SERVICE_CONFLICT, now.conflict)
    if now.undeleted is not None:
        return yes(now.undeleted.reason, now.undeleted.message)
    if now.unrecorded:
        others = f" (and {len(now.unrecorded) - 1} more models)" if len(now.unrecorded) > 1 else ""
        return yes(Reason.WRITE_REFUSED, f"{now.unrecorded[0]}{others}")
    if now.unrouted:
        return yes(Reason.ROUTE_NOT_SERVED, now.unrouted)
    if now.crowded:
        return yes(Reason.TOO_MANY_ENDPOINTS, now.crowded)
    if not workers.holds and ready_workers(now.workers):
        return yes(workers.reason, workers.message)
    troubled = sorted(impaired(now.workers), key=lambda w: w.name)
    for worker in troubled[:1]:
        if worker.view is not None:
            others = f" (and {len(troubled) - 1} more workers)" if len(troubled) > 1 else ""
            text = f"worker {worker.name}{others}: {worker.view.condition.failure.message}"
            return yes(_own_reason(worker.view.condition, otherwise=Reason.UNKNOWN), text)
    lost = sorted(leaking(now.workers), key=lambda w: w.name)
    if lost:
        others = f" (and {len(lost) - 1} more workers)" if len(lost) > 1 else ""
        return yes(Reason.DEVICE_MEMORY_LEAKED, f"worker {lost[0].name}{others}: {_leak(lost[0])}")
    return no(Reason.AS_EXPECTED)


def _leak(worker: Worker) -> str:
    device = worker.view.device if worker.view is not None else None
    nbytes = device.leaked_bytes if device is not None else 0
    return (
        f"{quantities.human(nbytes)} of its device memory are in use and held by no weights and no execution: delete the pod "
        "to have them back"
    )


def _ready(now: Situation, accepted: Fact, workers: Fact) -> Fact:
    if accepted.status != "True":
        return no(accepted.reason, accepted.message)
    ready = ready_workers(now.workers)
    if ready:
        return yes(Reason.READY, f"{len(ready)} workers answer")
    return Fact("Unknown" if workers.status == "Unknown" else "False", workers.reason, workers.message)


def _names(workers: Sequence[Worker]) -> str:
    names = sorted(w.name for w in workers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
