# SPDX-License-Identifier: Apache-2.0
"""Pages on loopback for whoever may forward a port of the pod: plan, memory map, models, decisions, host copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from ballast_worker.control import report
from ballast_worker.control.http import Page, Request, Response
from ballast_worker.control.worker import Worker
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.survey import survey
from ballast_worker.serving.shown import shown

_DIGITS: Final = 9
"""Of a number of decisions; more than are ever kept."""


def pages(worker: Worker) -> Mapping[str, Page]:
    """Every page. All are JSON; names are those of the control service where it has them too."""

    def plan(_: Request) -> Response:
        made = worker.desk.plan()
        return Response.json(_dict(made) if made is not None else None)

    def explain(request: Request) -> Response:
        model, limit = request.query.get("model"), request.query.get("limit")
        if limit is not None and not (limit.isdecimal() and len(limit) <= _DIGITS):
            return Response.text(f"limit is {shown(limit)}: it is a number of decisions", status=400)
        found = [made for made in worker.desk.decisions() if model in (None, made.model)]
        return Response.json([_dict(report.decision(made)) for made in found[: None if limit is None else int(limit)]])

    def models(_: Request) -> Response:
        return Response.json([_dict(model) for model in report.worker_state(worker.view()).models])

    def state(_: Request) -> Response:
        return Response.json(_dict(report.worker_state(worker.view())))

    def memory(_: Request) -> Response:
        parts = worker.parts
        if parts is None:
            return Response.json(None)
        return Response.json(
            {
                "capacity": parts.memory.statistics().capacity,
                "extents": [
                    {
                        "model": extent.key.rpartition("#")[0] or extent.key,
                        "offset": extent.offset,
                        "bytes": extent.nbytes,
                        "state": extent.state.value,
                        "pinned": extent.pinned,
                    }
                    for extent in parts.memory.extents()
                ],
            }
        )

    def regions(_: Request) -> Response:
        try:
            found = asdict(survey(worker.pool_directory))
        except HostPoolError as error:
            return Response.text(str(error), 404)
        return Response.json({**found, "path": str(found["path"])})

    return {"/regions": regions, "/plan": plan, "/explain": explain, "/models": models, "/state": state, "/map": memory}


def health(worker: Worker) -> Mapping[str, Page]:
    """Liveness, which never waits for a build, and readiness, which is an accepted plan."""

    def alive(_: Request) -> Response:
        fault = worker.fault()
        return Response.text("ok") if fault is None else Response.text(fault, 503)

    def ready(_: Request) -> Response:
        condition = worker.condition
        if condition.phase is report.Phase.READY:
            return Response.text("ok")
        failure = condition.failure
        why = f"{failure.reason}: {failure.message}" if failure is not None else condition.message
        return Response.text(f"{condition.phase.value}: {why}" if why else condition.phase.value, 503)

    return {"/healthz": alive, "/readyz": ready}


def _dict(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
