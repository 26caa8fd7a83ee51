# SPDX-License-Identifier: Apache-2.0
"""Clear words for a manifest that is wrong: file, field, value, limit, and the nearest thing that was meant."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

from ballast_contract.validation import keys_at, nearest

MAX_FAULTS = 8
"""Faults told in one message; the rest is counted."""

_WORDS: Mapping[str, str] = {
    "model_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have {min_length} or more characters",
    "too_long": "must have at most {max_length} items, not {actual_length}",
    "too_short": "must have {min_length} or more items",
}
"""What the value at a place has to be, by the kind of fault."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def short(value: object) -> str:
    """A value for a message, cut where it is long."""
    return _SHORT.repr(value)


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
    words = _WORDS.get(fault["type"])
    if words is None:
        message = str(fault["msg"]).removeprefix("Value error, ")
    else:
        message = ("" if path else "a manifest ") + words.format(**fault.get("ctx", {}))
    return (f"{path}: " if path else "") + message + _got(fault["input"])


def _got(value: Any) -> str:
    """What was given, as far as that is short."""
    if isinstance(value, str | int | float | bool):
        return f" (got {short(value)})"
    return " (got nothing)" if value is None else ""
