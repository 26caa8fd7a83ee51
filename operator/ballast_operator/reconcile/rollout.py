# SPDX-License-Identifier: Apache-2.0
"""Make before break: which workers hold a model, and which of them answer for it, while it moves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ballast_operator.reconcile.wishes import Model
from ballast_operator.reconcile.workers import Worker


@dataclass(frozen=True, slots=True)
class Rollout:
    """One model at one moment.

    `hold` are uids of workers that are to have the model; `serve` of those to which calls go, in order of pod name;
    `since` says since when a worker is no longer needed; `moved` when every target does what is wished.
    """

    hold: frozenset[str] = frozenset()
    serve: tuple[str, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)
    moved: bool = False


def roll(
    model: Model,
    workers: Sequence[Worker],
    *,
    targets: Collection[str],
    holders: Collection[str],
    exposed: Collection[str],
    since: Mapping[str, float],
    now: float,
    drain_seconds: float,
    frozen: bool = False,
) -> Rollout:
    """What should be so now.

    The new workers load first; when all of them do what is wished, calls go to them alone; a worker that is no target
    any more keeps the model until its endpoint is gone, a while has passed since, and nothing waits in its queue.

    Args:
        model: the model.
        workers: those of `targets` and `holders` that exist.
        targets: names of the pods that placement chose.
        holders: uids of workers that were last told to hold the model, or report it.
        exposed: uids of pods that the model's EndpointSlices call ready.
        since: what the last call returned.
        now: the clock of `since`.
        drain_seconds: that while.
        frozen: the model is paused: it stays although no copy may be wished any more.
    """
    wanted = [w for w in workers if w.name in targets and not w.pod.finished]
    if model.spec.replicas == 0 and not frozen:
        return Rollout()
    moved = bool(wanted) and all(w.reached(model) and _callable(w) for w in wanted)
    old = [w for w in workers if w.uid in holders and w not in wanted and w.can_call(model) is not False]
    serving = _by_name(wanted if moved else [*wanted, *old], model)
    if not moved:
        return Rollout(frozenset(w.uid for w in (*wanted, *old)), serving)
    kept: dict[str, float] = {}
    for worker in old:
        if worker.uid in exposed:  # calls still come: the time has not begun
            kept[worker.uid] = now
            continue
        begun = since.get(worker.uid, now)
        state = worker.report(model)
        if now - begun < drain_seconds or (state is not None and state.queue_depth > 0):
            kept[worker.uid] = begun
    return Rollout(frozenset({*(w.uid for w in wanted), *kept}), serving, kept, moved=True)


def _callable(worker: Worker) -> bool:
    """Whether the worker gets an endpoint: one whose pod is not Ready cannot take over the calls of another."""
    return worker.pod.ready or worker.pod.terminating


def _by_name(workers: Sequence[Worker], model: Model) -> tuple[str, ...]:
    """Workers that answer for the model, or of which it is not known that they do not."""
    return tuple(w.uid for w in sorted(workers, key=lambda w: w.name) if w.can_call(model) is not False)
