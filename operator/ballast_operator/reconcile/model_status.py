# SPDX-License-Identifier: Apache-2.0
"""The figures in the status of an InferenceModel: where its weights are, what they take, what last went wrong. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_contract import names, quantities
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.common import Tier
from ballast_operator.api.inferencemodel import MAX_REPORTED_WORKERS
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.conditions import MAX_MESSAGE, timestamp
from ballast_operator.reconcile.model_situation import Copy, Situation, answering, wanted_copies
from ballast_operator.reconcile.wishes import Model, Rejection
from ballast_operator.reconcile.workers import Worker

Status = dict[str, Any]

TIERS: Final[Mapping[int, Tier]] = {
    pb.TIER_NONE: Tier.NONE,
    pb.TIER_HOST: Tier.HOST,
    pb.TIER_DEVICE: Tier.DEVICE,
}

_WORST_FIRST: Final = (Tier.NONE, Tier.HOST, Tier.DEVICE)


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
        found["readyReplicas"] = len(answering(now, model))
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
                "message": copy.failure.message[:MAX_MESSAGE],
                "worker": copy.name,
            }
            if copy.failure.HasField("exit_code"):
                found["exitCode"] = copy.failure.exit_code
            return found
    for copy in copies:
        trouble = copy.worker.pod.trouble
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
