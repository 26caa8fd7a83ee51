# SPDX-License-Identifier: Apache-2.0
"""What one process remembers of a pool between reconciliations; all of it can be lost and is found again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import InferenceModelSpec
from ballast_operator.fleet.routes import RouteBook
from ballast_operator.placement.demand import Counters, Demand, WorkerModel
from ballast_operator.placement.model import ModelPlacement, Packed
from ballast_operator.reconcile.bundles import Bundles
from ballast_operator.reconcile.pods import Trouble
from ballast_operator.reconcile.wishes import Model, Rejection


@dataclass(slots=True)
class Window:
    """What was counted since demand was last folded."""

    started: float
    base: dict[WorkerModel, Counters] = field(default_factory=dict)
    counted: dict[str, Counters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """What workers are told of a model, made once for each of its specs: a pool may have thousands."""

    spec: InferenceModelSpec
    message: pb.AssignedModel
    content: bytes
    """The message, serialised; equal contents say the same."""

    @classmethod
    def of(cls, model: Model) -> Self:
        """Make it."""
        message = model.message()
        return cls(model.spec, message, message.SerializeToString(deterministic=True))


@dataclass(slots=True)
class Pool:
    """The memory of a pool. The reconciliation of its budget writes it; those of its models read it.

    `targets` are pod names by model uid, as the last placement chose and as status.assignment says; `holders` the pods
    (uid) that were told to hold a model, by model uid; `since` the drain timers of `rollout.roll`, by model uid.
    """

    uid: str
    bundles: Bundles
    window: Window
    routes: RouteBook = field(default_factory=RouteBook)
    generation: int = 0
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    placements: Mapping[str, ModelPlacement] = field(default_factory=dict)
    packed: Packed = field(default_factory=Packed)
    """What `placements` were made from."""
    waiting: Mapping[str, Rejection] = field(default_factory=dict)
    obstacles: Mapping[str, Rejection] = field(default_factory=dict)
    """Why a model has fewer workers than it wants, by uid."""
    holders: dict[str, frozenset[str]] = field(default_factory=dict)
    since: dict[str, Mapping[str, float]] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)
    """Workers (uid) whose reported models have been taken into `holders`."""
    contents: dict[str, tuple[int, tuple[int, tuple[bytes, ...]]]] = field(default_factory=dict)
    """What each worker was last told, by uid: generation, workers on its node, and the models serialised."""

    messages: dict[str, Told] = field(default_factory=dict)
    """What workers were last told of each model, by uid."""
    unrecorded: dict[str, str] = field(default_factory=dict)
    """Why the API server refused the assignment of a model, by uid: it stays where it was."""
    record_after: float = 0.0
    """When that is tried again."""
    frozen: frozenset[str] = frozenset()
    """Models (uid) that are paused: they stay where they are, as they are."""

    halted: Rejection | None = None
    """Why no model gets a place: the budget is paused, or not accepted."""
    recovered: bool = False
    """`targets` and `generation` were read back from the statuses of the models."""
    workers_before: frozenset[str] | None = None
    signature_before: object = None
    room_before: object = None
    workers_seen: frozenset[str] = frozenset()
    workers_changed_at: float = 0.0

    demand: dict[str, Demand] = field(default_factory=dict)
    compute_seconds: float = 0.0
    """Device seconds of all workers since the last repack that they caused."""
    first_repack_done: bool = False
    repacks_since_compaction: int = 0
    to_compact: frozenset[str] = frozenset()
    """Workers (name) whose models a repack changed: they are compacted when those have moved."""
    compaction: asyncio.Task[None] | None = None
    last_repack: Mapping[str, object] = field(default_factory=dict)
    last_compaction: Mapping[str, object] = field(default_factory=dict)

    host_nodes: dict[str, float] = field(default_factory=dict)
    """Nodes that hold a host pool, with when a worker was last seen there."""
    removing: dict[str, float] = field(default_factory=dict)
    """Nodes from which the host pool is being removed, with since when."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Why that failed the last time, by node."""

    draining: frozenset[str] = frozenset()
    released: set[str] = field(default_factory=set)
    namespace_ending: bool = False
    """The namespace is being deleted: no worker comes after those that end now, so none of them waits for one."""
    creation: Trouble | None = None
    unshared: Trouble | None = None
    """A model store that only one node can mount keeps workers from starting."""
    undeleted: Trouble | None = None
    """Why a pod or a configuration that should go is still there."""
    create_after: float = 0.0
    failed_in_a_row: int = 0
    """Times that pods ended for good, or could get no configuration, since all were last as wanted and ready."""
    blocked: str = ""
    conflict: str = ""
    """What is in the way of the pool's children."""
    unaddressed: str = ""
    """What is in the way of the Service at which the whole pool is called."""
    fragmented_since: dict[str, float] = field(default_factory=dict)
    figures_at: float = float("-inf")
    """When figures were last written to the budget's status."""
    model_figures_at: dict[str, float] = field(default_factory=dict)
    deleting_since: float | None = None
    route: tuple[object, float] | None = None
    """The HTTPRoute as last wished, with when it was looked at."""
    unrouted: str = ""
    """Why the HTTPRoute does not lead to the pool."""
    crowded: str = ""
    """Why models of the pool get no Service each, where there are too many of them."""

    async def close(self) -> None:
        """Stop what runs in the background for the pool."""
        if self.compaction is not None:
            self.compaction.cancel()
            await asyncio.gather(self.compaction, return_exceptions=True)
        await self.bundles.close()

    def count(self, counters: Mapping[WorkerModel, Counters], since: Mapping[str, Counters]) -> None:
        """Add what was counted since the last look to the window."""
        self.window.base = dict(counters)
        for model, more in since.items():
            seen = self.window.counted.get(model, Counters(0, 0.0))
            self.window.counted[model] = Counters(
                seen.requests + more.requests, seen.compute_seconds + more.compute_seconds
            )
            self.compute_seconds += more.compute_seconds
