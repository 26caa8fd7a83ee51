# SPDX-License-Identifier: Apache-2.0
"""Conditions: facts about an object, and how they are written over those that stand in its status. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ballast_contract.reasons import Reason

MAX_MESSAGE: Final = 4096
"""Characters of a message in a status."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Fact:
    """What a condition says."""

    status: Truth
    reason: Reason
    message: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is True."""
        return self.status == "True"


def yes(reason: Reason, message: str = "") -> Fact:
    """It is so."""
    return Fact("True", reason, message)


def no(reason: Reason, message: str = "") -> Fact:
    """It is not so."""
    return Fact("False", reason, message)


def unknown(reason: Reason, message: str = "") -> Fact:
    """It is not known, yet or any more."""
    return Fact("Unknown", reason, message)


def merge(
    facts: Mapping[str, Fact], existing: Sequence[Mapping[str, Any]], *, generation: int, now: dt.datetime
) -> list[dict[str, Any]]:
    """The conditions to write; the time of one changes only when its status does."""
    before = {condition["type"]: condition for condition in existing}
    merged = []
    for type_, fact in facts.items():
        old = before.get(type_)
        same = old is not None and old["status"] == fact.status
        merged.append(
            {
                "type": type_,
                "status": fact.status,
                "reason": fact.reason.value,
                "message": fact.message[:MAX_MESSAGE],
                "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else timestamp(now),
                "observedGeneration": generation,
            }
        )
    return merged


def keep(existing: Iterable[Mapping[str, Any]], type_: str) -> Fact | None:
    """What a condition says now, or None where there is none."""
    for condition in existing:
        if condition["type"] == type_:
            return Fact(condition["status"], _reason(condition["reason"]), condition["message"])
    return None


def timestamp(time: dt.datetime) -> str:
    """A metav1.Time."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> dt.datetime:
    """What a metav1.Time or MicroTime says. Raises ValueError for another spelling."""
    return dt.datetime.fromisoformat(text)


def _reason(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:  # of another release
        return Reason.UNKNOWN
