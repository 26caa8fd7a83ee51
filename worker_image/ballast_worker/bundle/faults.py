# SPDX-License-Identifier: Apache-2.0
"""Clear words for a manifest that is wrong: file, field, value, limit, and the nearest thing that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pydantic

from ballast_contract.validation import in_words, keys_at, nearest, short

MAX_FAULTS = 8
"""Faults told in one message; the rest is counted."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the nearest known word, or the list of what is known."""
    known = sorted(known)
    hint = nearest(word, known)
    return f"did you mean {hint!r}?" if hint else f"known are {', '.join(known)}"


def describe(error: pydantic.ValidationError, model: type[pydantic.BaseModel], *, file: str) -> str:
    """Every fault of a validation, `file: field: what is wrong`, separated by semicolons."""
    faults = error.errors(include_url=False)
    # A list whose items are wrong is also reported as too short: only the items are news.
    parents = {fault["loc"][:length] for fault in faults for length in range(len(fault["loc"]))}
    faults = [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in parents]
    lines = [_one(fault, model) for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        lines.append(f"and {len(faults) - MAX_FAULTS} more")
    return f"{file}: " + "; ".join(lines)


def _one(fault: Any, model: type[pydantic.BaseModel]) -> str:
    location = tuple(part for part in fault["loc"] if part != "[key]")  # of a key and not of its value
    path = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        return f"unknown key {path!r}: {did_you_mean(str(location[-1]), keys_at(model, location[:-1]))}"
    if fault["type"] == "missing":
        return f"{path!r} is missing"
    return (f"{path}: " if path else "a manifest ") + in_words(fault) + _got(fault["input"])


def _got(value: Any) -> str:
    """What was given, as far as that is short."""
    if isinstance(value, str | int | float | bool):
        return f" (got {short(value)})"
    return " (got nothing)" if value is None else ""
