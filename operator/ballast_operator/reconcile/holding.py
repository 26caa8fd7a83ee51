# SPDX-License-Identifier: Apache-2.0
"""Which worker is told to hold which models, while they move: from targets to assignments and routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.cluster.resources import ENDPOINT_SLICES
from ballast_operator.fleet.link import Assignment
from ballast_operator.fleet.routes import Hop
from ballast_operator.reconcile.endpoints import exposed
from ballast_operator.reconcile.pool import Pool, Told
from ballast_operator.reconcile.rollout import Rollout, roll
from ballast_operator.reconcile.wishes import Model
from ballast_operator.reconcile.workers import Crew, Worker
from ballast_operator.reconcile.world import World

_LOOK_SECONDS: Final = 1.0
"""Least time until a worker is looked at again in whose queue calls of a model wait that has left it."""

_COMING: Final = frozenset({pb.MODEL_PHASE_PENDING, pb.MODEL_PHASE_BUILDING})
"""Phases of a model that a worker does not answer for yet, and will."""


def _note_generations(pool: Pool, crew: Crew) -> None:
    """Stay above every generation that a worker has accepted."""
    reported = (w.view.assignment_generation for w in crew if w.view is not None and w.known)
    pool.generation = max(pool.generation, *reported, 0)


def _merge_reports(pool: Pool, models: Sequence[Model], crew: Crew) -> None:
    """Count models that a worker serves from an earlier assignment as held, once for each worker."""
    new = {worker.uid for worker in crew if worker.known} - pool.merged
    if not new:
        return
    pool.merged |= new
    for model in models:
        reporting = new.intersection(worker.uid for worker in crew.reporting(model))
        if reporting:
            pool.holders[model.uid] = pool.holders.get(model.uid, frozenset()) | reporting


def roll_model(world: World, pool: Pool, model: Model, crew: Crew) -> Rollout:
    """Where one model stands in its move."""
    slices = world.caches[ENDPOINT_SLICES].group("service", model.namespace, model.name)
    targets, holders = pool.targets.get(model.uid, ()), pool.holders.get(model.uid, frozenset())
    return roll(
        model,
        crew.involved(targets, holders),
        targets=targets,
        holders=holders,
        exposed=exposed(slices),
        since=pool.since.get(model.uid, {}),
        now=world.clock(),
        drain_seconds=world.options.drain_seconds,
        frozen=model.uid in pool.frozen,
    )


def roll_out(world: World, pool: Pool, models: Sequence[Model], crew: Crew) -> tuple[frozenset[str], float | None]:
    """Tell each worker what it is to hold now.

    Returns the uids of workers that hold anything, and the seconds until a drain timer runs out.
    """
    _merge_reports(pool, models, crew)
    now = world.clock()
    rolls: dict[str, Rollout] = {}
    timers: list[float] = []
    for model in models:
        rollout = rolls[model.uid] = roll_model(world, pool, model, crew)
        pool.holders[model.uid], pool.since[model.uid] = rollout.hold, rollout.since
        timers += [max(_LOOK_SECONDS, world.options.drain_seconds - (now - begun)) for begun in rollout.since.values()]
    for uid in pool.holders.keys() - rolls.keys():
        del pool.holders[uid]
        pool.since.pop(uid, None)
    _assign(world, pool, models, crew, rolls)
    holding = frozenset(uid for rollout in rolls.values() for uid in rollout.hold)
    return holding, min(timers, default=None)


def _assign(world: World, pool: Pool, models: Sequence[Model], crew: Crew, rolls: Mapping[str, Rollout]) -> None:
    routes = pool.routes.update(_table(models, crew, rolls), epoch=world.epoch())
    held_by: dict[str, list[Told]] = {}
    for model in models:
        told = pool.messages.get(model.uid)
        if told is None or (told.spec is not model.spec and model.uid not in pool.frozen):
            told = pool.messages[model.uid] = Told.of(model)
        for uid in rolls[model.uid].hold:
            held_by.setdefault(uid, []).append(told)
    neighbours = Counter(worker.pod.node for worker in crew if worker.pod.live)
    raised = False
    for worker in crew:
        link = world.fleet.link(worker.uid)
        if link is None or not worker.known:
            continue
        held = held_by.get(worker.uid, [])
        beside = neighbours[worker.pod.node]
        content = beside, tuple(told.content for told in held)
        generation, before = pool.contents.get(worker.uid, (0, None))
        if content != before:
            if not raised:
                _note_generations(pool, crew)
                pool.generation += 1
                raised = True
            generation = pool.generation
            pool.contents[worker.uid] = generation, content
        link.assign(Assignment(generation, tuple(told.message for told in held), routes, beside))
    for uid in pool.contents.keys() - crew.by_uid.keys():
        del pool.contents[uid]
    for uid in pool.messages.keys() - rolls.keys():
        del pool.messages[uid]


def _table(models: Sequence[Model], crew: Crew, rolls: Mapping[str, Rollout]) -> dict[str, tuple[Hop, ...]]:
    by_uid = {uid: worker for uid, worker in crew.by_uid.items() if worker.pod.ip and not worker.pod.finished}
    hops = {w.uid: Hop(w.name, w.pod.ip, names.HTTP_PORT, names.GRPC_PORT) for w in by_uid.values()}
    table = {}
    for model in models:
        rollout = rolls[model.uid]
        chosen = [uid for uid in rollout.serve if uid in hops] or sorted(rollout.hold & hops.keys())
        staying = [uid for uid in chosen if not by_uid[uid].pod.terminating] or chosen
        if staying:
            table[model.served_name] = tuple(hops[uid] for uid in staying)
    return table


def at_rest(pool: Pool, worker: Worker) -> bool:
    """Whether a worker has what it was told to have: nothing is on its way to it, and nothing waits to leave it."""
    view, (generation, _) = worker.view, pool.contents.get(worker.uid, (0, None))
    if view is None or view.assignment_generation < generation:
        return False
    leaving = any(worker.uid in since for since in pool.since.values())
    return not leaving and not any(state.phase in _COMING for state in view.models.values())


def models_held(holding: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """How many models each worker (uid) holds."""
    counts: dict[str, int] = {}
    for workers in holding.values():
        for uid in workers:
            counts[uid] = counts.get(uid, 0) + 1
    return counts
