# SPDX-License-Identifier: Apache-2.0
"""One step of a pool's placement: which models go where, who is told, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast_contract.reasons import Reason
from ballast_operator.api.weightbudget import CompactionMode, WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.dispatch import Key
from ballast_operator.cluster.resources import BUDGETS
from ballast_operator.fleet.link import Link
from ballast_operator.placement.cadence import compaction_due
from ballast_operator.reconcile import assigning, commands, crew, demand, holding, placing, roster
from ballast_operator.reconcile.budget_situation import ready_workers
from ballast_operator.reconcile.conditions import timestamp
from ballast_operator.reconcile.pods import Pod
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.wishes import Model
from ballast_operator.reconcile.workers import Crew
from ballast_operator.reconcile.world import World


class Placement:
    """The step of a budget's reconciliation that is about its models."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(
        self,
        key: Key,
        obj: Object,
        pool: Pool,
        spec: WeightBudgetSpec,
        models: Sequence[Model],
        found: Sequence[Pod],
    ) -> list[float]:
        """Place, roll out, release and compact as it is time; returns the seconds until something of it is due."""
        world = self._world
        now = crew.crew_of(world, found, leaving=pool.draining)
        demand.sample(pool, now)
        readers = [link for w in now if w.available and (link := world.fleet.link(w.uid)) is not None]
        timers = [pool.bundles.want(models, readers)]
        inputs = assigning.gather(pool, spec, models, now)
        commands.refuse(world, obj)
        token = commands.repack_asked(obj, pool)
        state = assigning.situation(
            pool, inputs, now, now=world.clock(), requested=bool(token), compute_due=demand.due(pool, spec)
        )
        pool.unrecorded = {m.uid: pool.unrecorded[m.uid] for m in models if m.uid in pool.unrecorded}
        cause = placing.trigger(state)
        if cause is None and (state.starting or state.reading) and state.waited < placing.GATHER_SECONDS:
            timers.append(max(0.5, placing.GATHER_SECONDS - state.waited))
        if cause is not None:
            await self._place(key, obj, pool, spec, inputs, state, cause, token)
        if pool.unrecorded:
            timers.append(max(0.5, pool.record_after - world.clock()))
        held, drained = holding.roll_out(world, pool, models, now)
        timers.append(drained)
        crew.release_idle(world, pool, now, held if spec.workers.replicas else frozenset(), by=key)
        asked = commands.compaction_asked(obj, pool)
        ready = self._serving(obj) if asked else []
        if ready:
            mode = commands.mode_asked(spec.placement.compaction.mode)
            commands.start_compaction(world, obj, pool, commands.plan_compaction(mode, ready, asked=asked))
        self._compact_moved(obj, pool, spec, now)
        roster.judge_size(world, obj, pool, models)
        roster.note_obstacles(world, pool, spec, models, now)
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
                pool, spec, inputs.models, crew.crew_of(world, crew.members(world, obj), leaving=pool.draining)
            )
        packing = await assigning.place(world, pool, spec, inputs, settled=settled, by=key)
        pool.workers_before, pool.signature_before, pool.room_before = state.workers, state.signature, state.room
        world.metrics.repacks.labels(key.namespace, key.name, cause.value).inc()
        world.metrics.models_moved.labels(key.namespace, key.name).inc(len(packing.moved))
        if cause is placing.Trigger.COMPUTE:
            pool.first_repack_done, pool.compute_seconds = True, 0.0
        if settled or not (packing.placements or token):
            return
        pool.last_repack = {
            **assigning.describe(cause, packing, pool.generation),
            "time": timestamp(world.now()),
            **({"token": token} if token else _token(pool.last_repack)),
        }
        if packing.moved or cause is placing.Trigger.REQUEST:
            note = f"{len(packing.assignments)} models placed, {len(packing.moved)} moved ({cause.value})"
            world.events.post(obj, BUDGETS.kind, "Normal", Reason.REPACKED, "Repack", note)
        await demand.store(world, obj, pool, by=key)
        if cause is not placing.Trigger.START:
            self._note_changed(obj, pool, spec, packing.changed_workers)

    def _note_changed(self, obj: Object, pool: Pool, spec: WeightBudgetSpec, changed_workers: Sequence[str]) -> None:
        """Count a repack: it may be time to compact the workers that it changed; those that serve nothing yet are whole."""
        compaction = spec.placement.compaction
        changed = frozenset(link.member.name for link in self._serving(obj)).intersection(changed_workers)
        pool.repacks_since_compaction, fire = compaction_due(
            pool.repacks_since_compaction,
            enabled=compaction.mode is not CompactionMode.DISABLED,
            every=compaction.every_repacks,
            changed=bool(changed),
        )
        if fire:
            pool.to_compact |= changed

    def _compact_moved(self, obj: Object, pool: Pool, spec: WeightBudgetSpec, now: Crew) -> None:
        """Compact the workers that a repack changed, once their models have come and gone."""
        pool.to_compact &= now.by_name.keys()
        mode = spec.placement.compaction.mode
        if not pool.to_compact or pool.compaction is not None:
            return
        if mode is not CompactionMode.DISABLED:
            workers = [worker for worker in ready_workers(list(now)) if worker.name in pool.to_compact]
            if not workers or not all(holding.at_rest(pool, worker) for worker in workers):
                return
            links = [link for worker in workers if (link := self._world.fleet.link(worker.uid)) is not None]
            commands.start_compaction(self._world, obj, pool, commands.plan_compaction(mode, links))
        pool.to_compact = frozenset()

    def _serving(self, obj: Object) -> list[Link]:
        """The connections to workers that answer calls."""
        now = crew.crew_of(self._world, crew.members(self._world, obj))
        links = (self._world.fleet.link(w.uid) for w in ready_workers(list(now)))
        return [link for link in links if link is not None]


def _token(last: Mapping[str, object]) -> dict[str, object]:
    return {"token": last["token"]} if last.get("token") else {}
