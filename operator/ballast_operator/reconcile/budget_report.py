# SPDX-License-Identifier: Apache-2.0
"""What a reconciliation of a WeightBudget says of it in the end: its status, and the gauges of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.resources import BUDGETS
from ballast_operator.reconcile import budget_facts, budget_status, crew, holding
from ballast_operator.reconcile.budget_situation import Situation, impaired, in_pieces, ready_workers
from ballast_operator.reconcile.pods import Pod, Wanted
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.unknown_fields import unknown_fields
from ballast_operator.reconcile.wishes import Model, Rejection, paused
from ballast_operator.reconcile.workers import Crew, Worker
from ballast_operator.reconcile.world import World
from ballast_operator.reconcile.writing import write_status

_URGENT: Final = ("replicas", "readyReplicas", "selector", "lastRepack", "lastCompaction", "shortfall", "hostNodes")


async def report(
    world: World,
    obj: Object,
    pool: Pool,
    verdict: WeightBudgetSpec | Rejection,
    found: Sequence[Pod],
    *,
    by: Key,
    wanted: Wanted | None,
    models: Sequence[Model],
) -> float | None:
    """Write the status when it differs, and set the gauges of the pool.

    Args:
        world: what is shared.
        obj: the WeightBudget.
        pool: its pool.
        verdict: its spec, or why it is not accepted.
        found: its pods.
        by: the reconciliation that reports.
        wanted: what its pods should be; None while that is not known.
        models: its models that are accepted.

    Returns:
        Seconds until it wants to report again without an event; None: never.
    """
    now = crew.crew_of(world, found, leaving=pool.draining)
    _note_fragmentation(pool, now, world.clock())
    situation = Situation(
        verdict=verdict,
        name=by.name,
        workers=list(now),
        now=world.clock(),
        wanted=wanted,
        creation=pool.creation or pool.unshared,
        undeleted=pool.undeleted,
        unrecorded=list(pool.unrecorded.values()),
        blocked=pool.blocked,
        fragmented_since=pool.fragmented_since,
        models=holding.models_held(pool.holders),
        unknown_fields=unknown_fields(obj, WeightBudgetSpec),
        paused=paused(obj),
        conflict=pool.conflict,
        unrouted=pool.unrouted,
        crowded=pool.crowded,
        stale_definitions=world.options.stale_definitions,
        host_nodes=sorted(pool.host_nodes),
    )
    current = world.caches[BUDGETS].get(by.namespace, by.name) or obj
    existing = current.get("status") or {}
    body = budget_status.body(situation, existing)
    for field, value in (("lastRepack", pool.last_repack), ("lastCompaction", pool.last_compaction)):
        if value:
            body[field] = dict(value)
    _measure(world, by, now, models)
    waited = world.clock() - pool.figures_at
    period = world.options.figures_seconds
    written = await write_status(
        world,
        BUDGETS,
        current,
        budget_facts.facts(situation, existing.get("conditions", ())),
        body,
        by=by,
        urgent=_URGENT,
        figures_due=waited >= period,
    )
    if written:
        pool.figures_at = world.clock()
    if pool.fragmented_since:
        return budget_facts.FRAGMENTED_SECONDS / 4
    return max(0.5, period - waited) if written is None else None


def _measure(world: World, key: Key, now: Crew, models: Sequence[Model]) -> None:
    metrics, labels = world.metrics, (key.namespace, key.name)
    ready = {w.uid for w in ready_workers(list(now))}
    states = {"ready": 0, "starting": 0, "refused": 0, "stale": 0, "terminating": 0}
    for worker in now:
        states[_state(worker, ready=worker.uid in ready)] += 1
    for state, count in states.items():
        metrics.workers.labels(*labels, state).set(count)
    metrics.models.labels(*labels).set(len(models))
    reasons = [w.view.condition.failure.reason for w in impaired(list(now)) if w.view is not None]
    metrics.host_fallbacks.labels(*labels).set(reasons.count(Reason.SHM_FALLBACK.value))


def _note_fragmentation(pool: Pool, now: Crew, clock: float) -> None:
    pieces = {worker.uid for worker in now if worker.pod.live and in_pieces(worker)}
    pool.fragmented_since = {uid: pool.fragmented_since.get(uid, clock) for uid in pieces}


def _state(worker: Worker, *, ready: bool) -> str:
    if worker.pod.terminating:
        return "terminating"
    if worker.silent:
        return "stale"
    if ready:
        return "ready"
    refused = worker.view is not None and worker.view.condition.failure.reason
    return "refused" if refused else "starting"
