# SPDX-License-Identifier: Apache-2.0
"""What placement is compared with: round robin, least loaded, and the plain longest-processing-time rule."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_operator.placement.load import size
from ballast_operator.placement.model import Assignments, ModelDemand, MovePrice, WorkerCapacity
from ballast_operator.placement.simulation import Policy


def round_robin(
    models: Sequence[ModelDemand], workers: Sequence[WorkerCapacity], _: Assignments, __: MovePrice
) -> dict[str, tuple[str, ...]]:
    """Models by name, one worker after the other; nothing ever moves."""
    found, turn = {}, 0
    for model in sorted(models, key=lambda model: model.name):
        count = min(model.replicas, len(workers))
        found[model.name] = tuple(sorted(workers[(turn + number) % len(workers)].name for number in range(count)))
        turn += count
    return found


def least_loaded(
    models: Sequence[ModelDemand], workers: Sequence[WorkerCapacity], previous: Assignments, _: MovePrice
) -> dict[str, tuple[str, ...]]:
    """Models by name, each to the workers with the least compute, then the fewest models; models that have workers stay."""
    compute = {worker.name: 0.0 for worker in workers}
    here = dict.fromkeys(compute, 0)
    found: dict[str, tuple[str, ...]] = {}
    for model in sorted(models, key=lambda model: (model.name not in previous, model.name)):
        count = min(model.replicas, len(workers))
        chosen = previous.get(model.name) or sorted(compute, key=lambda name: (compute[name], here[name], name))[:count]
        found[model.name] = tuple(sorted(chosen))
        for name in chosen:
            compute[name] += model.utilization / count
            here[name] += 1
    return found


def plain_lpt(hysteresis_percent: int = 10) -> Policy:
    """Longest processing time first: busiest first to the lowest of max(compute, memory), where it fits if it fits anywhere.

    A model keeps its worker while that is within the hysteresis at its turn. Pinned weights and what a move costs count
    for nothing.
    """
    tolerance = 1 + hysteresis_percent / 100

    def policy(
        models: Sequence[ModelDemand], workers: Sequence[WorkerCapacity], previous: Assignments, _: MovePrice
    ) -> dict[str, tuple[str, ...]]:
        compute = {worker.name: 0.0 for worker in workers}
        held = dict.fromkeys(compute, 0)
        capacity = {worker.name: worker.capacity_bytes or 0 for worker in workers}
        found: dict[str, tuple[str, ...]] = {}
        for model in sorted(models, key=lambda m: (-m.utilization, -m.weights_bytes, m.name)):
            count, nbytes = min(model.replicas, len(workers)), size(model)
            share = model.utilization / count
            score = {
                name: max(compute[name] + share, (held[name] + nbytes) / capacity[name] if capacity[name] else 0.0)
                for name in compute
            }
            before = previous.get(model.name, ())
            fitting = {name for name in compute if not capacity[name] or held[name] + nbytes <= capacity[name]}
            order = sorted(score, key=lambda name: (name not in fitting, score[name], name not in before, name))
            chosen = order[:count]
            if count == 1:
                allowed = fitting or set(compute)
                stay = [name for name in before if name in allowed and score[name] <= score[order[0]] * tolerance]
                chosen = stay[:1] or chosen
            found[model.name] = tuple(sorted(chosen))
            for name in chosen:
                compute[name] += share
                held[name] += nbytes
        return found

    return policy
