# SPDX-License-Identifier: Apache-2.0
"""What `ballast-simulate` is given as text: files, numbers, sizes and the trace. What cannot be used is refused in a sentence."""

from __future__ import annotations

import codecs
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ballast_contract import quantities, validation
from ballast_operator.placement.simulation import Arrival

_LONGEST_SECONDS: Final = 366 * 86_400.0
"""Of a trace; every minute of it is looked at."""

_MOST_MILLISECONDS: Final = 86_400_000.0

_MOST_REQUESTS: Final = 1e9

_MOST_BYTES: Final = 1 << 60

_SHOWN: Final = 32
"""Characters of a number, which needs no more."""


class InputError(Exception):
    """Something that was given cannot be used; the message says what, where and what to write."""


def text(path: str) -> str:
    """A file as text, in UTF-8 or, with a byte order mark, in UTF-16; `-` is standard input.

    Raises:
        InputError: it cannot be read.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text at byte {error.start}: save it as UTF-8") from error


def milliseconds(given: str, what: str) -> float:
    """Device time of a request, a day at most; `what` is what messages call it.

    Raises:
        InputError: it is none.
    """
    return _number(given, what, most=_MOST_MILLISECONDS)


def size(given: str, what: str) -> int:
    """A size in bytes; `what` is what messages call it.

    Raises:
        InputError: it is spelled wrong, or more than any machine has.
    """
    if len(given) > _SHOWN:
        raise InputError(f"{what}: '{given[:_SHOWN]}...' is too long for a size: write one as in 1536Mi or 60Gi")
    try:
        found = quantities.parse_api(given)
    except quantities.QuantityError as error:
        raise InputError(f"{what}: {error}") from error
    if found > _MOST_BYTES:
        raise InputError(f"{what}: '{given}' is more than {quantities.format_api(_MOST_BYTES)}: write fewer digits")
    return found


def arrivals(lines: Iterable[str], called: Mapping[str, str], source: str, *, otherwise_ms: float) -> Iterable[Arrival]:
    """The calls of a trace.

    Args:
        lines: seconds,model[,requests[,milliseconds]], each in quotes or not; empty lines, # comments and a header that
            begins with "seconds" are passed over, and an empty field counts as left out.
        called: Models by each name that the trace may use.
        source: What messages call the file.
        otherwise_ms: Device milliseconds of a request whose line gives none.

    Returns:
        Arrivals whose seconds count from the first line, which may be a time of day.

    Raises:
        InputError: there is no call, or a line cannot be read, is out of order, more than a year after the first, or names a
            model that is not there.
    """
    first, before, header = None, 0.0, True
    for number, line in enumerate(lines, 1):
        fields = [part.strip().strip('"').strip() for part in line.partition("#")[0].split(",")]
        if fields == [""]:
            continue
        if header and fields[0].lower() == "seconds":
            header = False
            continue
        header = False
        where = f"{source} line {number}"
        if not 2 <= len(fields) <= 4:
            raise InputError(
                f"{where}: '{line.strip()}' has {len(fields)} fields: write seconds,model[,requests[,milliseconds]]"
            )
        seconds = _number(fields[0], f"{where}: seconds")
        requests = _number(fields[2], f"{where}: requests", most=_MOST_REQUESTS) if any(fields[2:3]) else 1.0
        each = milliseconds(fields[3], f"{where}: milliseconds") if any(fields[3:]) else otherwise_ms
        if seconds < before:
            raise InputError(f"{where}: {fields[0]} comes after {before:g}: sort the trace by time")
        first = seconds if first is None else first
        if seconds - first > _LONGEST_SECONDS:
            raise InputError(
                f"{where}: {fields[0]} is more than a year after the first call, at {first:g}: write seconds, and a year at most"
            )
        if requests < 1 or requests != int(requests):
            raise InputError(f"{where}: requests is '{fields[2]}': write a whole number from 1 on")
        model = called.get(fields[1])
        if model is None:
            hint = validation.nearest(fields[1], called)
            raise InputError(
                f"{where}: model '{fields[1]}' is not among the models"
                + (f": did you mean '{hint}'?" if hint else f", which are {', '.join(sorted(called)[:5])}")
            )
        before = seconds
        yield Arrival(seconds - first, model, each / 1000, int(requests))
    if first is None:
        raise InputError(f"{source} has no call: write lines of seconds,model[,requests[,milliseconds]]")


def _number(given: str, what: str, *, most: float = math.inf) -> float:
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise InputError(f"{what} is '{given[:_SHOWN]}': write a number from 0 on")
    if found > most:
        raise InputError(f"{what} is '{given[:_SHOWN]}': write {most:.0f} at most")
    return found
