# SPDX-License-Identifier: Apache-2.0
"""What was observed of a WeightBudget."""

from __future__ import annotations

from typing import Annotated

import pydantic

from ballast_operator.api.common import (
    Conditions,
    Count,
    Generation,
    Message,
    Percent,
    ReportedSize,
    Status,
    Timestamp,
    Word,
)
from ballast_operator.api.workers import MAX_WORKERS


class DeviceStatus(Status):
    """Device memory of the worst worker: the one with the smallest largest free block."""

    budget: ReportedSize | None = None
    """budget is the device memory of the worker process."""
    pinned: ReportedSize | None = None
    """pinned is what models with residency device take."""
    free: ReportedSize | None = None
    """free is what is free for weights."""
    largest_free: ReportedSize | None = None
    """largestFree is the largest free block."""
    fragmentation_percent: Percent | None = None
    """fragmentationPercent is 100 x (1 - largestFree / free); 0 when the free memory is one block."""


class PlanLine(Status):
    """A line of the device memory plan."""

    line: Word
    """line is its name: context, code, scratch, pinned weights, on-demand weights or slack."""
    bytes: ReportedSize
    """bytes is what it takes."""
    source: Annotated[str, pydantic.Field(max_length=253)] = ""
    """source is where the figure comes from: measured, configured, the remainder."""
    knob: Annotated[str, pydantic.Field(max_length=253)] = ""
    """knob is the field that changes it: of this object, or of its models."""


class WorkerStatus(Status):
    """One worker of the pool."""

    name: Word
    """name is the name of the pod."""
    node: Word | None = None
    """node is the node of the pod."""
    ready: bool | None = None
    """ready is true when the worker answers calls. It is absent while not known."""
    reason: Word | None = None
    """reason says in one word why it is not ready."""
    message: Annotated[str, pydantic.Field(max_length=4096)] | None = None
    """message says it in a sentence."""
    models: Count | None = None
    """models is the number of models assigned to it."""
    up_to_date: bool | None = None
    """upToDate is true when the pod runs the current template."""
    free: ReportedSize | None = None
    """free is what is free for weights on its device."""
    largest_free: ReportedSize | None = None
    """largestFree is the largest free block on its device."""


class LastRepack(Status):
    """The last assignment of models to workers."""

    token: Word | None = None
    """token is that of the annotation ballast.dev/repack that asked for it, if one did."""
    time: Timestamp | None = None
    """time is when it was done."""
    trigger: Word | None = None
    """trigger is why it was done: start, compute, workers or request."""
    generation: Generation | None = None
    """generation is that of the assignments it made."""
    models_placed: Count | None = None
    """modelsPlaced is the number of models that have a worker."""
    models_moved: Count | None = None
    """modelsMoved is the number of models whose workers changed."""
    workers_changed: Count | None = None
    """workersChanged is the number of workers whose models changed."""


class LastCompaction(Status):
    """The last compaction, over all workers that took part."""

    token: Word | None = None
    """token is that of the annotation ballast.dev/compact that asked for it, if one did."""
    time: Timestamp | None = None
    """time is when it was done."""
    mode: Word | None = None
    """mode is how: lazy, preload or move."""
    workers: Count | None = None
    """workers is the number of workers that were compacted."""
    failed_workers: Count | None = None
    """failedWorkers is the number of workers that could not be compacted."""
    largest_free_before: ReportedSize | None = None
    """largestFreeBefore is the largest free block of the worst worker before."""
    largest_free_after: ReportedSize | None = None
    """largestFreeAfter is the largest free block of the worst worker after."""
    fragmentation_percent_before: Percent | None = None
    """fragmentationPercentBefore is the fragmentation of the worst worker before."""
    fragmentation_percent_after: Percent | None = None
    """fragmentationPercentAfter is the fragmentation of the worst worker after."""
    moved: ReportedSize | None = None
    """moved is how many bytes were moved."""
    reloaded_models: Count | None = None
    """reloadedModels is the number of models that were loaded again."""
    milliseconds_until_moved: Count | None = None
    """millisecondsUntilMoved is how long it took from the request until the free memory was one block, the wait for
    running calls included."""
    milliseconds_until_callable: Count | None = None
    """millisecondsUntilCallable is how long it took from the request until every model that was to be on the device
    could be called."""
    message: Message | None = None
    """message says what failed, if anything did."""


class WeightBudgetStatus(Status):
    """What was observed of a pool."""

    observed_generation: Generation | None = None
    """observedGeneration is the generation of the spec that this status speaks of."""
    replicas: Count | None = None
    """replicas is the number of worker pods."""
    ready_replicas: Count | None = None
    """readyReplicas is the number of workers that answer calls."""
    selector: Annotated[str, pydantic.Field(max_length=1024)] | None = None
    """selector selects the worker pods."""
    device: DeviceStatus | None = None
    """device is the device memory of the worst worker."""
    plan: Annotated[
        tuple[PlanLine, ...],
        pydantic.Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["line"]},
        ),
    ] = ()
    """plan are the lines that account for every byte of device memory, of the worst worker."""
    shortfall: ReportedSize | None = None
    """shortfall is what is missing where the plan does not fit."""
    workers: Annotated[
        tuple[WorkerStatus, ...],
        pydantic.Field(
            max_length=MAX_WORKERS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """workers are the workers of the pool."""
    host_nodes: Annotated[
        tuple[Word, ...], pydantic.Field(max_length=MAX_WORKERS, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """hostNodes are the nodes with host copies that workers share, also those where no worker runs any more."""
    last_repack: LastRepack | None = None
    """lastRepack is the last assignment of models to workers."""
    last_compaction: LastCompaction | None = None
    """lastCompaction is the last compaction."""
    conditions: Conditions = ()
    """conditions are Accepted, PlanFits, WorkersReady, Fragmented, UpToDate, Degraded and Ready."""
