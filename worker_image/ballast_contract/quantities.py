# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes: the strict spelling of the API and the forgiving one of the worker's own configuration."""

from __future__ import annotations

import re
from typing import Final

API_PATTERN: Final = r"^[0-9]+(Ki|Mi|Gi|Ti)?$"
"""The one spelling of a size in the Kubernetes API."""

MAX_SIZE: Final = 1 << 50
"""The largest size that can be configured, in bytes: 1024 Ti, far beyond any machine. Sums of many still fit 64 bits."""

PERCENT_PATTERN: Final = r"^(100|[1-9]?[0-9])%$"

_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_WORKER_SIZE: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[kmgt]?)(?:i?b?)", re.IGNORECASE)


class QuantityError(ValueError):
    """A size that cannot be read or used; the message names the value, and the right spelling or the limit."""


def parse_api(text: str) -> int:
    """Read a size of the Kubernetes API, in bytes.

    Raises:
        QuantityError: the spelling is not digits followed by nothing, Ki, Mi, Gi or Ti.
    """
    if re.fullmatch(API_PATTERN, text) is None:
        raise QuantityError(f"'{text}' is not a size: write digits and Ki, Mi, Gi or Ti, as in 1536Mi or 60Gi")
    digits = text.rstrip("KMGTi")
    return int(digits) * _FACTORS[text[len(digits) :].removesuffix("i").lower()]


def parse_worker(text: str) -> int:
    """Read a size of the worker's configuration, in bytes: `48g`, `1.5t`, `512MiB`; any case, always binary.

    Raises:
        QuantityError: no number, a unit other than b, k, m, g, t and their long forms, or more than `MAX_SIZE`.
    """
    match = _WORKER_SIZE.fullmatch(text.strip())
    if match is None:
        raise QuantityError(
            f"'{_cut(text)}' is not a size: write a number and a unit, as in 512m, 1.5t or 60Gi (always binary)"
        )
    size = float(match["number"]) * _FACTORS[match["unit"].lower()]
    if size > MAX_SIZE:  # also infinity, which too many digits are
        raise QuantityError(f"'{_cut(text)}' is too large: a size is at most 1024t")
    return int(size + 0.5)


def check_worker(size: int) -> int:
    """The bytes that were given, where they are a size.

    Raises:
        QuantityError: they are negative, or more than `MAX_SIZE`.
    """
    if size < 0:
        raise QuantityError("a size is at least 0")
    if size > MAX_SIZE:
        raise QuantityError(f"a size is at most 1024t, which is {MAX_SIZE} bytes")
    return size


def is_percent(text: str) -> bool:
    """Whether the text is a whole percentage from 0% to 100%."""
    return re.fullmatch(PERCENT_PATTERN, text) is not None


def parse_percent(text: str) -> int:
    """Read a percentage from 0% to 100%.

    Raises:
        QuantityError: it is not whole, or out of range.
    """
    if not is_percent(text):
        raise QuantityError(f"'{_cut(text)}' is not a percentage: write a whole number from 0% to 100%")
    return int(text[:-1])


def format_api(size: int) -> str:
    """Spell bytes for the API exactly: the largest unit that divides them."""
    for unit, factor in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def ceil_api(size: int) -> str:
    """Spell at least so many bytes for the API, rounded up to whole Mi (Ki below 1 Mi): values that a person types."""
    step, unit = (1 << 20, "Mi") if size >= 1 << 20 else (1 << 10, "Ki")
    return f"{-(-size // step)}{unit}"


def floor_api(size: int) -> str:
    """Spell at most so many bytes for the API, rounded down as `ceil_api` rounds up."""
    step, unit = (1 << 20, "Mi") if size >= 1 << 20 else (1 << 10, "Ki")
    return f"{size // step}{unit}"


def human(size: int) -> str:
    """Spell bytes for a person, three digits: `87.3 MiB`. Never read back."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:40]}..."
