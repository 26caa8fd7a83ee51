# SPDX-License-Identifier: Apache-2.0
"""What the models are asked for: counted from the workers' reports, folded at each repack, kept in a ConfigMap."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.resources import BUDGETS, CONFIG_MAPS
from ballast_operator.placement.cadence import repack_due
from ballast_operator.placement.demand import Counters, Demand, WorkerModel, fold, since
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.pool import Pool, Window
from ballast_operator.reconcile.workers import Crew
from ballast_operator.reconcile.world import World
from ballast_operator.reconcile.writing import ensure

logger = logging.getLogger(__name__)

_KEY: Final = "demand.json"
_DIGITS: Final = 6


def sample(pool: Pool, crew: Crew) -> None:
    """Add what the workers have counted since the last look to the pool's window."""
    now: dict[WorkerModel, Counters] = {}
    for worker in crew:
        if worker.view is None or not worker.known:
            continue
        for state in worker.view.models.values():
            if state.object:
                counters = Counters(state.requests_total, state.compute_seconds_total)
                now[worker.view.instance_id, state.object] = counters
    pool.count(now, since(pool.window.base, now))


def due(pool: Pool, spec: WeightBudgetSpec) -> bool:
    """Whether enough device time has passed for a repack."""
    repack = spec.placement.repack
    return repack_due(
        pool.compute_seconds,
        first_done=pool.first_repack_done,
        first_after=repack.first_after_compute_seconds,
        every=repack.every_compute_seconds,
    )


def close_window(pool: Pool, spec: WeightBudgetSpec, *, now: float) -> None:
    """Fold the window into the pool's demand and begin the next."""
    pool.demand = fold(
        pool.demand,
        pool.window.counted,
        elapsed_seconds=now - pool.window.started,
        half_life_compute_seconds=float(spec.placement.repack.every_compute_seconds),
    )
    pool.window = Window(started=now, base=pool.window.base)


def restore(obj: Object | None) -> dict[str, Demand]:
    """The demand that a ConfigMap keeps; nothing where it cannot be read."""
    try:
        stored: dict[str, Any] = json.loads((obj or {}).get("data", {})[_KEY])
        return {
            model: Demand(float(rate), None if cost is None else float(cost), float(weight))
            for model, (rate, cost, weight) in stored.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


async def store(world: World, budget: Object, pool: Pool, *, by: Key) -> None:
    """Keep the demand for the next leader."""
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    kept = {
        m: [round(d.rate, _DIGITS), d.cost if d.cost is None else round(d.cost, _DIGITS), round(d.weight, _DIGITS)]
        for m, d in pool.demand.items()
    }
    body = {
        "metadata": {
            "name": naming.demand_map(name),
            "namespace": namespace,
            "labels": naming.labels(component="demand", budget=name),
            "ownerReferences": naming.owner(BUDGETS, budget),
        },
        "data": {_KEY: json.dumps(kept, sort_keys=True)},
    }
    obstacle = await ensure(world, CONFIG_MAPS, body, uid=budget["metadata"]["uid"], by=by)
    if obstacle:
        logger.warning("%s: demand is not kept for the next leader: %s", by, obstacle)
