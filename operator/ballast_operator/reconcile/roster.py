# SPDX-License-Identifier: Apache-2.0
"""The models of a pool: which are accepted, what the last leader wrote down of them, and what keeps them from workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import ENDPOINT_SLICES, MODELS
from ballast_operator.reconcile import endpoints, naming
from ballast_operator.reconcile.pods import worst
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.wishes import Model, Rejection, deleting, judge_model, paused
from ballast_operator.reconcile.workers import Crew
from ballast_operator.reconcile.world import World, model_key

_CALM_SHARE: Final = 0.9
"""Of each limit: down to it a pool that was above counts as above."""


def accepted(world: World, budget: Object, pool: Pool) -> list[Model]:
    """The models of a budget that are accepted, by name; those that are paused are noted in the pool."""
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    found, frozen = [], set()
    for obj in world.caches[MODELS].group("budget", namespace, name):
        if deleting(obj):
            continue
        if paused(obj):
            frozen.add(obj["metadata"]["uid"])
        placed = bool(pool.targets.get(obj["metadata"]["uid"]))
        verdict = judge_model(obj, budget=budget, namesakes=world.namesakes(obj), placed=placed)
        if not isinstance(verdict, Rejection):
            found.append(verdict)
    pool.frozen = frozenset(frozen)
    return sorted(found, key=lambda m: m.name)


def recover(world: World, budget: Object, pool: Pool) -> None:
    """Read back what the last leader wrote down, and call for every model of the budget.

    Workers that have an endpoint count as holders from the start: one that a model is leaving is in no assignment any more,
    and keeps its endpoint until it is heard.
    """
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    for obj in world.caches[MODELS].group("budget", namespace, name):
        assignment = (obj.get("status") or {}).get("assignment") or {}
        if assignment.get("workers"):
            pool.targets[obj["metadata"]["uid"]] = tuple(assignment["workers"])
        slices = world.caches[ENDPOINT_SLICES].group("service", namespace, obj["metadata"]["name"])
        pool.holders[obj["metadata"]["uid"]] = frozenset(endpoints.present(slices))
        pool.generation = max(pool.generation, int(assignment.get("generation", 0)))
        world.enqueue(model_key(namespace, obj["metadata"]["name"]), 0.0)
    judge_size(world, budget, pool, accepted(world, budget, pool))
    pool.recovered = True


def judge_size(world: World, budget: Object, pool: Pool, models: Sequence[Model]) -> None:
    """Above some number of models or endpoints a pool keeps its own address only: proxies of every node pay for each.

    Copies that a move makes before it breaks others do not count, and a pool that was above has to fall below nine tenths:
    Services that come and go cost more than a few too many.
    """
    limits = world.options
    uids = {model.uid for model in models}
    wanted = sum(len(targets) for uid, targets in pool.targets.items() if uid in uids)
    before, pool.crowded = pool.crowded, ""
    share = _CALM_SHARE if before else 1.0
    if len(models) > share * limits.max_model_services or wanted > share * limits.max_model_endpoints:
        pool.crowded = (
            f"the pool has more than {limits.max_model_services} models or {limits.max_model_endpoints} endpoints, so "
            f"its models have no Service each: call them at {naming.pool_service(budget['metadata']['name'])}, or split "
            "the pool"
        )
    if pool.crowded != before:
        for model in models:
            world.enqueue(model_key(model.namespace, model.name), 0.0)


def note_obstacles(world: World, pool: Pool, spec: WeightBudgetSpec, models: Sequence[Model], crew: Crew) -> None:
    """Find what keeps each model from its workers, and call for the models of which that is something new."""
    trouble = pool.creation or worst(w.pod.trouble for w in crew if w.pod.trouble is not None)
    idle = not any(worker.available for worker in crew)
    found: dict[str, Rejection] = {}
    for model in models:
        placement = pool.placements.get(model.uid)
        placed = crew.by_name.keys() & set(pool.targets.get(model.uid, ()))
        if not spec.workers.replicas:
            budget = model.spec.budget_ref.name
            found[model.uid] = Rejection(Reason.NOT_REQUESTED, f"spec.workers.replicas of WeightBudget '{budget}' is 0")
        elif model.uid in pool.unrecorded:
            found[model.uid] = Rejection(Reason.WRITE_REFUSED, pool.unrecorded[model.uid])
        elif idle and not placed:
            if trouble is not None:
                found[model.uid] = Rejection(trouble.reason, trouble.message)
        elif model.uid in pool.waiting:
            found[model.uid] = pool.waiting[model.uid]
        elif placement is not None and placement.reason is not None:
            found[model.uid] = Rejection(placement.reason, placement.message)
    before, pool.obstacles = pool.obstacles, found
    for model in models:
        if before.get(model.uid) != found.get(model.uid):
            world.enqueue(model_key(model.namespace, model.name), 0.0)
