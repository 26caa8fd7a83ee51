# SPDX-License-Identifier: Apache-2.0
"""One reconciliation of a WeightBudget: its pods, the placement of its models on them, its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ballast_contract import config, names
from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import CompactionMode, WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.resources import BUDGETS, CONFIG_MAPS
from ballast_operator.fleet.link import Link
from ballast_operator.placement.cadence import compaction_due
from ballast_operator.reconcile import assigning, budget_status, commands, crew, deletion, demand, naming, placing, pods
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.children import children
from ballast_operator.reconcile.conditions import timestamp
from ballast_operator.reconcile.pods import Pod, PodPlan, Wanted
from ballast_operator.reconcile.pool import Pool, Window
from ballast_operator.reconcile.template import Template, render
from ballast_operator.reconcile.unknown_fields import unknown_fields
from ballast_operator.reconcile.wishes import Model, Rejection, deleting, judge_budget, paused
from ballast_operator.reconcile.workers import Crew, Worker
from ballast_operator.reconcile.world import World, model_key
from ballast_operator.reconcile.writing import ensure, write_status

SAMPLE_SECONDS: Final = 15.0
"""How often the workers' counters are looked at."""

_URGENT: Final = ("replicas", "readyReplicas", "selector", "lastRepack", "lastCompaction", "shortfall")


class BudgetReconciler:
    """Reconciles WeightBudgets; the state that it keeps between calls is in `world.pools`."""

    def __init__(self, world: World) -> None:
        self._world = world

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
            return await deletion.finish(world, obj, found, began=pool.deleting_since, by=key)
        if not pool.recovered:
            assigning.recover(world, obj, pool)
        verdict = judge_budget(obj)
        template: Template | None = None
        if not isinstance(verdict, Rejection):
            try:
                template = render(key.name, verdict, default_image=world.options.worker_image)
            except config.ConfigError as error:
                verdict = Rejection(Reason.INVALID_SPEC, str(error))
        if isinstance(verdict, Rejection) or template is None or paused(obj):
            crew.join(world, key.namespace, key.name, found)
            return await self._report(key, obj, pool, verdict, found, wanted=None, models=())
        obj = await deletion.add_finalizer(world, obj, by=key)
        await self._children(key, obj, pool)
        wanted = _wanted(obj, verdict, template)
        timers = [SAMPLE_SECONDS] if found or verdict.workers.replicas else []
        models = assigning.accepted(world, obj, pool)
        timers += await self._pods(key, obj, pool, verdict, template, wanted, models)
        found = crew.members(world, obj)
        timers += await self._models(key, obj, pool, verdict, models, found)
        again = await self._report(key, obj, pool, verdict, found, wanted=wanted, models=models)
        return min([*timers, *([again] if again is not None else [])], default=None)

    async def _children(self, key: Key, obj: Object, pool: Pool) -> None:
        owner = naming.owner(BUDGETS.kind, obj)
        obstacles = [
            await ensure(self._world, resource, body, uid=pool.uid, by=key)
            for resource, body in children(key.name, key.namespace, owner)
        ]
        pool.conflict = "; ".join(text for text in obstacles if text)

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
        held = assigning.models_held(pool.holders)
        movable = sum(w.available for w in now) > 1 or (bool(pool.draining) and any(w.available for w in now))
        plan = pods.plan(wanted, found, models=held, movable=movable)
        pool.blocked = ""
        if plan.updating and plan.drain and plan.drain[0].uid not in pool.draining:
            inputs = assigning.gather(pool, models, now)
            pool.blocked = assigning.stranded(pool, spec, inputs, plan.drain[0].name)
            if pool.blocked:
                plan = PodPlan(create=plan.create, delete=plan.delete)
        pool.draining = frozenset(pod.uid for pod in plan.drain)
        await crew.carry_out(world, obj, pool, template, plan, by=key)
        await crew.drop_old_configs(world, obj, template, crew.members(world, obj), by=key)
        waits = pool.create_after - world.clock()
        return [max(0.5, waits)] if waits > 0 or pool.creation is not None else []

    async def _models(
        self,
        key: Key,
        obj: Object,
        pool: Pool,
        spec: WeightBudgetSpec,
        models: Sequence[Model],
        found: Sequence[Pod],
    ) -> list[float]:
        world = self._world
        now = crew.crew_of(world, found, leaving=pool.draining)
        demand.sample(pool, now)
        readers = [link for w in now if w.available and (link := world.fleet.link(w.uid)) is not None]
        timers = [pool.bundles.want(models, readers)]
        inputs = assigning.gather(pool, models, now)
        token = commands.repack_asked(obj, pool)
        state = assigning.situation(
            pool, inputs, now, now=world.clock(), requested=bool(token), compute_due=demand.due(pool, spec)
        )
        cause = placing.trigger(state)
        if cause is None and (state.starting or state.reading):
            timers.append(max(0.5, placing.GATHER_SECONDS - state.waited))
        if cause is not None:
            await self._place(key, obj, pool, spec, inputs, state, cause, token)
        holding, drained = assigning.roll_out(world, pool, models, now)
        timers.append(drained)
        crew.release_idle(world, pool, now, holding, by=key)
        asked = commands.compaction_asked(obj, pool)
        ready = self._serving(obj) if asked else []
        if ready:
            mode = commands.mode_asked(spec.placement.compaction.mode)
            commands.start_compaction(world, obj, pool, commands.plan_compaction(mode, ready, asked=asked))
        self._judge_size(key, pool, models)
        assigning.note_obstacles(world, pool, models, now)
        return [timer for timer in timers if timer is not None]

    async def _place(
        self,
        key: Key,
        obj: Object,
        pool: Pool,
        spec: WeightBudgetSpec,
        inputs: assigning.Inputs,
        state: placing.Situation,
        cause: placing.Trigger,
        token: str,
    ) -> None:
        world = self._world
        settled = cause is placing.Trigger.MODELS
        if not settled:
            demand.close_window(pool, spec, now=world.clock())
            inputs = assigning.gather(
                pool, inputs.models, crew.crew_of(world, crew.members(world, obj), leaving=pool.draining)
            )
        packing = await assigning.place(world, pool, spec, inputs, settled=settled, by=key)
        pool.workers_before, pool.signature_before, pool.room_before = state.workers, state.signature, state.room
        world.metrics.repacks.labels(key.namespace, key.name, cause.value).inc()
        world.metrics.models_moved.labels(key.namespace, key.name).inc(len(packing.moved))
        if settled or not (packing.placements or token):
            return
        pool.last_repack = {
            **assigning.describe(cause, packing, pool.generation),
            "time": timestamp(world.now()),
            **({"token": token} if token else _token(pool.last_repack)),
        }
        if cause is placing.Trigger.COMPUTE:
            pool.first_repack_done, pool.compute_seconds = True, 0.0
        if packing.moved or cause is placing.Trigger.REQUEST:
            note = f"{len(packing.assignments)} models placed, {len(packing.moved)} moved ({cause.value})"
            world.events.post(obj, BUDGETS.kind, "Normal", Reason.REPACKED, "Repack", note)
        await demand.store(world, obj, pool, by=key)
        if cause is not placing.Trigger.START:
            self._compact_after(obj, pool, spec, packing.changed_workers)

    def _compact_after(self, obj: Object, pool: Pool, spec: WeightBudgetSpec, changed_workers: Sequence[str]) -> None:
        """Compact the workers whose models a repack changed, when it is time; those that serve nothing yet are whole."""
        compaction = spec.placement.compaction
        links = [link for link in self._serving(obj) if link.member.name in changed_workers]
        pool.repacks_since_compaction, fire = compaction_due(
            pool.repacks_since_compaction,
            enabled=compaction.mode is not CompactionMode.DISABLED,
            every=compaction.every_repacks,
            changed=bool(links),
        )
        if fire and pool.compaction is None:
            planned = commands.plan_compaction(compaction.mode, links)
            commands.start_compaction(self._world, obj, pool, planned)

    def _serving(self, obj: Object) -> list[Link]:
        """The connections to workers that answer calls."""
        now = crew.crew_of(self._world, crew.members(self._world, obj))
        links = (self._world.fleet.link(w.uid) for w in budget_status.ready_workers(list(now)))
        return [link for link in links if link is not None]

    def _judge_size(self, key: Key, pool: Pool, models: Sequence[Model]) -> None:
        """Above some number of models or endpoints a pool keeps its own address only: proxies of every node pay for each."""
        world, limits = self._world, self._world.options
        endpoints = sum(len(holders) for holders in pool.holders.values())
        before, pool.crowded = pool.crowded, ""
        if len(models) > limits.max_model_services or endpoints > limits.max_model_endpoints:
            pool.crowded = (
                f"the pool has more than {limits.max_model_services} models or {limits.max_model_endpoints} endpoints, so "
                f"its models have no Service each: call them at {naming.pool_service(key.name)}, or split the pool"
            )
        if pool.crowded != before:
            for model in models:
                world.enqueue(model_key(model.namespace, model.name), 0.0)

    async def _report(
        self,
        key: Key,
        obj: Object,
        pool: Pool,
        verdict: WeightBudgetSpec | Rejection,
        found: Sequence[Pod],
        *,
        wanted: Wanted | None,
        models: Sequence[Model],
    ) -> float | None:
        world = self._world
        now = crew.crew_of(world, found, leaving=pool.draining)
        _note_fragmentation(pool, now, world.clock())
        situation = budget_status.Situation(
            verdict=verdict,
            name=key.name,
            workers=list(now),
            now=world.clock(),
            wanted=wanted,
            creation=pool.creation,
            blocked=pool.blocked,
            fragmented_since=pool.fragmented_since,
            models=assigning.models_held(pool.holders),
            unknown_fields=unknown_fields(obj, WeightBudgetSpec),
            paused=paused(obj),
            conflict=pool.conflict,
            crowded=pool.crowded,
        )
        body = budget_status.body(situation)
        for field, value in (("lastRepack", pool.last_repack), ("lastCompaction", pool.last_compaction)):
            if value:
                body[field] = dict(value)
        self._measure(key, now, models)
        waited = world.clock() - pool.figures_at
        period = world.options.figures_seconds
        current = world.caches[BUDGETS].get(key.namespace, key.name) or obj
        written = await write_status(
            world,
            BUDGETS,
            current,
            budget_status.facts(situation),
            body,
            by=key,
            urgent=_URGENT,
            figures_due=waited >= period,
        )
        if written:
            pool.figures_at = world.clock()
        if pool.fragmented_since:
            return budget_status.FRAGMENTED_SECONDS / 4
        return max(0.5, period - waited) if written is None else None

    def _measure(self, key: Key, now: Crew, models: Sequence[Model]) -> None:
        metrics, labels = self._world.metrics, (key.namespace, key.name)
        ready = {w.uid for w in budget_status.ready_workers(list(now))}
        states = {"ready": 0, "starting": 0, "refused": 0, "stale": 0, "terminating": 0}
        for worker in now:
            states[_state(worker, ready=worker.uid in ready)] += 1
        for state, count in states.items():
            metrics.workers.labels(*labels, state).set(count)
        metrics.models.labels(*labels).set(len(models))


def _wanted(obj: Object, spec: WeightBudgetSpec, template: Template) -> Wanted:
    token = obj["metadata"].get("annotations", {}).get(names.ANNOTATION_UPDATE, "")
    return Wanted(spec.workers.replicas, template.spec_hash, template.template_hash, token)


def _token(last: Mapping[str, object]) -> dict[str, object]:
    return {"token": last["token"]} if last.get("token") else {}


def _note_fragmentation(pool: Pool, now: Crew, clock: float) -> None:
    pieces = {worker.uid for worker in now if worker.pod.live and budget_status.in_pieces(worker)}
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
