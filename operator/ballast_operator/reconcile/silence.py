# SPDX-License-Identifier: Apache-2.0
"""When nothing is said yet of a new model: each word about one that is on its way would be out of date at once. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from ballast_contract.reasons import Reason
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile.conditions import moment
from ballast_operator.reconcile.wishes import Model, Rejection, paused
from ballast_operator.reconcile.workers import Worker

FIRST_SECONDS: Final = 5.0
"""Age at which a new model gets a status although it is still on its way."""


def silence(
    obj: Object,
    model: Model,
    *,
    placeable: bool,
    obstacle: Rejection | None,
    workers: Sequence[Worker],
    refused: bool,
    now: dt.datetime,
) -> float | None:
    """Seconds for which a model that has no status is still let be; None when there is something to say.

    Args:
        obj: the InferenceModel.
        model: the same, as it is wished.
        placeable: its pool has workers that take models.
        obstacle: why it has no place.
        workers: those that are to have it.
        refused: one of them will not serve it.
        now: the time of day; a clock that differs from the API server's by more than the age only ends the silence.
    """
    said = bool((obj.get("status") or {}).get("conditions"))
    lasting = (
        model.spec.replicas == 0
        or paused(obj)
        or not placeable
        or refused
        or (obstacle is not None and obstacle.reason is not Reason.PENDING)
        or any(worker.report(model) is not None for worker in workers)
    )
    if said or lasting:
        return None
    age = (now - moment(obj["metadata"]["creationTimestamp"])).total_seconds()
    return FIRST_SECONDS - age if 0 <= age < FIRST_SECONDS else None
