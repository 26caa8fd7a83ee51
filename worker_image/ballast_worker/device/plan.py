# SPDX-License-Identifier: Apache-2.0
"""The device memory plan: lines that account for every byte of the budget before anything is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The weights of one model that the worker is to serve.

    Attributes:
        name: what clients call.
        nbytes: as packed.
        pinned: residency device.
    """

    name: str
    nbytes: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class LineInput:
    """A line that a generative bundle declares: bytes, or units of so many bytes.

    Attributes:
        name: of the line.
        nbytes: of the whole line.
        minimum: the least it can work with, in bytes.
        source: who asks for it.
    """

    name: str
    nbytes: int
    minimum: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything the plan is made from; bytes throughout.

    Attributes:
        budget: device memory of the whole process, from `budget.resolve`.
        context: driver context and libraries, measured.
        overhead: `Backend.overhead_bytes` and 2 MiB per GiB of page-locked host memory.
        code: executables of every model.
        scratch: the XLA pool that every model's programs need.
        models: every model to be served.
    """

    budget: int
    context: int
    code: int
    scratch: int
    models: tuple[ModelWeights, ...]
    overhead: int = 0
    configured_scratch: int | None = None
    max_percent: int = 100
    slack_percent: int = 10
    generative: tuple[LineInput, ...] = ()
    oversubscription: Literal["refuse", "allow"] = "refuse"


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One line: where bytes go, where the figure comes from and which setting changes it."""

    name: str
    nbytes: int
    minimum: int
    source: str
    knob: str


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and the value with which, alone, a refused plan would fit."""

    key: str
    value: str
    current: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The lines, which sum to the budget to the byte, and whether they fit.

    Attributes:
        budget: bytes.
        lines: in order; of a refused plan the least that each line needs, which sums to `minimum`.
        fits: the worker may start.
        minimum: the smallest budget that would fit, in bytes.
        shortfall: bytes; 0 when it fits.
        knobs: empty when it fits.
        warnings: sentences for people.
    """

    budget: int
    lines: tuple[PlanLine, ...]
    fits: bool
    minimum: int
    shortfall: int
    knobs: tuple[Knob, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def arena(self) -> int:
        """Bytes of the arena: pinned and on-demand weights."""
        return sum(line.nbytes for line in self.lines if line.name in {"pinned weights", "on-demand weights"})

    @property
    def scratch(self) -> int:
        """Bytes of the XLA pool."""
        return next(line.nbytes for line in self.lines if line.name == "scratch")


def make_plan(inputs: PlanInputs) -> Plan:
    """Account for every byte of the budget, or refuse."""
    raise NotImplementedError


def render(plan: Plan) -> str:
    """The plan as one aligned table for people."""
    raise NotImplementedError
