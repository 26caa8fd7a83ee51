# SPDX-License-Identifier: Apache-2.0
"""The plans of device and host memory as one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.device.knobs import Knob
from ballast_worker.device.plan import Plan, PlanLine


def plan_message(made: Plan, host: HostPlan | None, driver_used: int | None) -> pb.Plan:
    """A plan as a message."""
    return pb.Plan(
        budget_bytes=made.budget,
        lines=_lines(made.lines),
        fits=made.fits,
        minimum_bytes=made.minimum,
        shortfall_bytes=made.shortfall,
        knobs=_knobs(made.knobs),
        driver_used_bytes=driver_used,
        host=_host_plan(host) if host is not None else None,
    )


def _host_plan(made: HostPlan) -> pb.HostPlan:
    return pb.HostPlan(
        lines=_lines(made.lines),
        fits=made.fits,
        minimum_bytes=made.minimum,
        shortfall_bytes=made.shortfall,
        knobs=_knobs(made.knobs),
        limit_bytes=made.limit,
        mount_bytes=made.mount_bytes,
    )


def _lines(lines: Iterable[PlanLine]) -> Iterator[pb.PlanLine]:
    for line in lines:
        yield pb.PlanLine(
            line=line.name, bytes=line.nbytes, minimum_bytes=line.minimum, source=line.source, knob=line.knob
        )


def _knobs(knobs: Iterable[Knob]) -> Iterator[pb.Knob]:
    for knob in knobs:
        yield pb.Knob(key=knob.key, value=knob.value, current=knob.current)
