# SPDX-License-Identifier: Apache-2.0
"""One reconciliation of a WeightBudget: its pods, the placement of its models on them, its status."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_contract import config, names
from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key, earliest
from ballast_operator.cluster.resources import BUDGETS, CONFIG_MAPS, MODELS
from ballast_operator.reconcile import (
    assigning,
    budget_report,
    crew,
    deletion,
    demand,
    gateway,
    holding,
    host_pools,
    naming,
    placing,
    pods,
    roster,
    stores,
)
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.children import children
from ballast_operator.reconcile.host_memory import is_shared, place_of
from ballast_operator.reconcile.placement import Placement
from ballast_operator.reconcile.pods import PodPlan, Wanted
from ballast_operator.reconcile.pool import Pool, Window
from ballast_operator.reconcile.template import Template, render
from ballast_operator.reconcile.wishes import Model, Rejection, deleting, parse_budget, paused
from ballast_operator.reconcile.world import World, model_key
from ballast_operator.reconcile.writing import UNWATCHED_SECONDS, ensure


class BudgetReconciler:
    """Reconciles WeightBudgets; the state that it keeps between calls is in `world.pools`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._placement = Placement(world)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one budget nearer to what is wished; returns the seconds until it wants to be called again."""
        world = self._world
        obj = world.caches[BUDGETS].get(key.namespace, key.name)
        if obj is None:
            await self._forget(key)
            return None
        pool = await self._pool(key, obj)
        return await self._one(key, obj, pool)

    async def _forget(self, key: Key) -> None:
        pool = self._world.pools.pop((key.namespace, key.name), None)
        if pool is not None:
            await pool.close()
        crew.join(self._world, key.namespace, key.name, ())
        self._world.metrics.forget(key.namespace, key.name)

    async def _pool(self, key: Key, obj: Object) -> Pool:
        world, uid = self._world, obj["metadata"]["uid"]
        pool = world.pools.get((key.namespace, key.name))
        if pool is not None and pool.uid == uid:
            return pool
        await self._forget(key)
        bundles = Bundles(clock=world.clock, changed=lambda: world.enqueue(key, 0.0))
        pool = Pool(uid=uid, bundles=bundles, window=Window(started=world.clock()))
        status = obj.get("status") or {}
        pool.last_repack, pool.last_compaction = status.get("lastRepack") or {}, status.get("lastCompaction") or {}
        pool.first_repack_done = pool.last_repack.get("trigger") == placing.Trigger.COMPUTE.value
        host_pools.recover(obj, pool, now=world.clock())
        pool.demand = demand.restore(world.caches[CONFIG_MAPS].get(key.namespace, naming.demand_map(key.name)))
        world.pools[key.namespace, key.name] = pool
        return pool

    async def _one(self, key: Key, obj: Object, pool: Pool) -> float | None:
        world = self._world
        found = crew.members(world, obj)
        if deleting(obj):
            crew.join(world, key.namespace, key.name, found)
            if pool.deleting_since is None:
                pool.deleting_since = world.clock()
            return await deletion.finish(world, obj, pool, found, began=pool.deleting_since, by=key)
        if not pool.recovered:
            crew.join(world, key.namespace, key.name, found)  # before models look: whom nobody dialled is not heard
            roster.recover(world, obj, pool)
        verdict, template = self._judge(obj)
        if not (isinstance(verdict, Rejection) or paused(obj)):
            held = await deletion.add_finalizer(world, obj, by=key)
            if isinstance(held, Rejection):
                verdict = held
            else:
                obj = held
        if isinstance(verdict, Rejection) or template is None or paused(obj):
            crew.join(world, key.namespace, key.name, found)
            pool.undeleted = None
            self._halt(key, pool, _halted(key.name, verdict))
            later = await budget_report.report(world, obj, pool, verdict, found, by=key, wanted=None, models=())
            refused = isinstance(verdict, Rejection) and verdict.reason is Reason.WRITE_REFUSED
            return earliest(later, UNWATCHED_SECONDS if refused else None)
        self._halt(key, pool, None)
        await self._children(key, obj, pool)
        await gateway.tend(world, obj, pool, verdict.serving.gateway_ref)
        wanted = _wanted(obj, verdict, template)
        models = roster.accepted(world, obj, pool)
        timers = [placing.sample_seconds(len(models))] if found or verdict.workers.replicas else []
        timers += await self._pods(key, obj, pool, verdict, template, wanted, models)
        timers += [UNWATCHED_SECONDS] if pool.conflict or pool.undeleted else []
        found = crew.members(world, obj)
        timers += await self._placement.run(key, obj, pool, verdict, models, found)
        again = await budget_report.report(world, obj, pool, verdict, found, by=key, wanted=wanted, models=models)
        return earliest(*timers, again)

    def _judge(self, obj: Object) -> tuple[WeightBudgetSpec | Rejection, Template | None]:
        """The spec with the pods that it asks for, or why it is not accepted."""
        options, verdict = self._world.options, parse_budget(obj)
        if isinstance(verdict, Rejection):
            return verdict, None
        images = {"default_image": options.worker_image, "operator_image": options.operator_image}
        try:
            return verdict, render(place_of(obj), verdict, **images)
        except config.ConfigError as error:
            return Rejection(Reason.INVALID_SPEC, str(error)), None

    async def _children(self, key: Key, obj: Object, pool: Pool) -> None:
        owner = naming.owner(BUDGETS, obj)
        obstacles = [
            await ensure(self._world, resource, body, uid=pool.uid, by=key)
            for resource, body in children(key.name, key.namespace, owner)
        ]
        pool.conflict = "; ".join(text for text in obstacles if text)
        before, pool.unaddressed = pool.unaddressed, obstacles[0]
        if pool.unaddressed != before:
            self._call_models(key)

    def _halt(self, key: Key, pool: Pool, cause: Rejection | None) -> None:
        before, pool.halted = pool.halted, cause
        if cause != before:
            self._call_models(key)

    def _call_models(self, key: Key) -> None:
        for model in self._world.caches[MODELS].group("budget", key.namespace, key.name):
            self._world.enqueue(model_key(key.namespace, model["metadata"]["name"]), 0.0)

    async def _pods(
        self,
        key: Key,
        obj: Object,
        pool: Pool,
        spec: WeightBudgetSpec,
        template: Template,
        wanted: Wanted,
        models: Sequence[Model],
    ) -> list[float]:
        world = self._world
        found = crew.members(world, obj)
        crew.join(world, key.namespace, key.name, found)
        now = crew.crew_of(world, found, leaving=pool.draining)
        held = holding.models_held(pool.holders)
        movable = sum(w.available for w in now) > 1 or (bool(pool.draining) and any(w.available for w in now))
        plan = pods.plan(wanted, [w.pod for w in now], models=held, movable=movable)
        pool.blocked = ""
        if plan.updating and plan.drain and plan.drain[0].uid not in pool.draining:
            inputs = assigning.gather(pool, spec, models, now)
            pool.blocked = assigning.stranded(pool, spec, inputs, plan.drain[0].name)
            if pool.blocked:
                plan = PodPlan(create=plan.create, delete=plan.delete)
        pool.draining = frozenset(pod.uid for pod in plan.drain)
        await crew.carry_out(world, obj, pool, template, plan, by=key)
        await crew.drop_old_configs(world, obj, pool, template, crew.members(world, obj), by=key)
        pool.unshared = await stores.trouble(world, key.namespace, spec, found)
        tend = await host_pools.tend(world, obj, pool, crew.members(world, obj), shared=is_shared(spec))
        timers = [tend] if tend is not None else []
        waits = pool.create_after - world.clock()
        return [*timers, max(0.5, waits)] if waits > 0 or pool.creation is not None else timers


def _halted(name: str, verdict: WeightBudgetSpec | Rejection) -> Rejection:
    if isinstance(verdict, Rejection):
        return Rejection(verdict.reason, f"WeightBudget '{name}' is not accepted: {verdict.message}")
    return Rejection(
        Reason.PAUSED,
        f"WeightBudget '{name}' is paused, so no model is placed: remove its annotation {names.ANNOTATION_PAUSED}",
    )


def _wanted(obj: Object, spec: WeightBudgetSpec, template: Template) -> Wanted:
    token = obj["metadata"].get("annotations", {}).get(names.ANNOTATION_UPDATE, "")
    return Wanted(spec.workers.replicas, template.spec_hash, template.template_hash, token)
