# SPDX-License-Identifier: Apache-2.0
"""The figures in the status of a WeightBudget: workers, plan and device memory of the worst of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ballast_contract import quantities
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.workers import MAX_WORKERS
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.budget_situation import Situation, fragmentation_percent, ready_workers
from ballast_operator.reconcile.conditions import MAX_MESSAGE
from ballast_operator.reconcile.pods import Trouble
from ballast_operator.reconcile.workers import Worker

Status = dict[str, Any]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

_LARGEST_STEP: Final = 64 << 20

_SMALLEST_STEP: Final = 1 << 20

_TOLD: Final = ("readyReplicas", "device", "plan", "shortfall")
"""Figures that hang on what workers tell."""


def body(now: Situation, existing: Mapping[str, Any] = _NOTHING) -> Status:
    """Everything of the status but its conditions, observedGeneration and the last commands.

    What hangs on a worker whose first report is due any moment stays as it is in `existing`.
    """
    live = [w for w in now.workers if w.pod.live]
    before = {entry["name"]: entry for entry in existing.get("workers", ())}
    found: Status = {
        "replicas": len(live),
        "selector": ",".join(f"{k}={v}" for k, v in naming.worker_selector(now.name).items()),
        "workers": [
            before[w.name] if w.awaited and w.name in before else _entry(w, now)
            for w in sorted(live, key=lambda w: w.name)
        ],
    }
    if now.host_nodes:
        found["hostNodes"] = list(now.host_nodes[:MAX_WORKERS])
    if any(w.awaited for w in live):
        return found | {key: existing[key] for key in _TOLD if key in existing}
    if not any(w.silent for w in live):
        found["readyReplicas"] = len(ready_workers(now.workers))
    reporting = [w for w in live if w.heard]
    measured = [w for w in reporting if w.view is not None and w.view.device is not None]
    if measured:
        found["device"] = _device(min(measured, key=_largest_free))
    planned = [w for w in reporting if w.view is not None and w.view.plan is not None and w.view.plan.lines]
    if planned:
        plan = max((w.view.plan for w in planned if w.view is not None and w.view.plan is not None), key=_tightness)
        found["plan"] = [_line(line) for line in plan.lines]
        if plan.shortfall_bytes:
            found["shortfall"] = quantities.ceil_api(plan.shortfall_bytes)
    return found


def rounded(size: int, *, budget: int) -> str:
    """A figure for a status, in steps of about 1/128 of the budget: small changes are not worth a write."""
    step = max(_SMALLEST_STEP, min(_LARGEST_STEP, 1 << max(0, (budget // 128).bit_length() - 1)))
    return quantities.format_api(size // step * step) if size >= step else "0"


def _entry(worker: Worker, now: Situation) -> Status:
    entry: Status = {"name": worker.name, "models": now.models.get(worker.uid, 0)}
    if worker.pod.node:
        entry["node"] = worker.pod.node
    if now.wanted is not None:
        entry["upToDate"] = worker.pod.template_hash == now.wanted.template_hash
    view, trouble = worker.view, worker.pod.trouble
    if worker.obstacle is not None:
        entry |= {"reason": worker.obstacle.reason.value, "message": worker.obstacle.message[:MAX_MESSAGE]}
        return entry
    if worker.silent:
        entry |= {"reason": Reason.HEARTBEAT_STALE.value, "message": "nothing is heard from it"}
        return entry
    if view is None or not worker.heard:
        cause = trouble or Trouble(Reason.WORKERS_STARTING, "it has not reported yet")
        return entry | {"ready": False, "reason": cause.reason.value, "message": cause.message[:MAX_MESSAGE]}
    entry["ready"] = view.serving and worker.pod.ready
    if not entry["ready"]:
        word = view.condition.failure.reason or (trouble.reason.value if trouble else Reason.WORKERS_STARTING.value)
        text = view.condition.failure.message or view.condition.message or (trouble.message if trouble else "")
        entry |= {"reason": word, "message": text[:MAX_MESSAGE]}
    elif failure := view.condition.failure.reason:
        entry |= {"reason": failure, "message": view.condition.failure.message[:MAX_MESSAGE]}
    if view.device is not None:
        budget = view.device.budget_bytes
        entry["free"] = rounded(view.device.free_bytes, budget=budget)
        entry["largestFree"] = rounded(view.device.largest_free_bytes, budget=budget)
    return entry


def _largest_free(worker: Worker) -> tuple[int, str]:
    device = worker.view.device if worker.view is not None else None
    return (device.largest_free_bytes if device is not None else 0), worker.name


def _device(worker: Worker) -> Status:
    device = worker.view.device if worker.view is not None else None
    if device is None:
        return {}
    budget = device.budget_bytes
    return {
        "budget": quantities.ceil_api(budget),
        "pinned": rounded(device.pinned_bytes, budget=budget),
        "free": rounded(device.free_bytes, budget=budget),
        "largestFree": rounded(device.largest_free_bytes, budget=budget),
        "fragmentationPercent": fragmentation_percent(device.free_bytes, device.largest_free_bytes),
    }


def _tightness(plan: pb.Plan) -> tuple[bool, int, int]:
    return not plan.fits, plan.shortfall_bytes, plan.minimum_bytes - plan.budget_bytes


def _line(line: pb.PlanLine) -> Status:
    found: Status = {"line": line.line, "bytes": quantities.format_api(line.bytes)}
    if line.source:
        found["source"] = line.source[:253]
    if line.knob:  # the worker names its own configuration, whose sections are those of the spec
        found["knob"] = f"spec.{line.knob}"[:253]
    return found
