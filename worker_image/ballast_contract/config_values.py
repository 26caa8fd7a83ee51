# SPDX-License-Identifier: Apache-2.0
"""What the settings of a worker are made of: sizes, paths, modes, addresses. Each is refused in words that say what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import pydantic

from ballast_contract import quantities
from ballast_contract.uri import parse as parse_uri

SEGMENT_UNIT: Final = 2 << 20
"""Bytes; segments of the host pool are whole multiples of it."""

_NO_SIZE: Final = "must be a size: write bytes, or a number and a unit, as in 512m, 1.5t or 60Gi"
_ADDRESS: Final = re.compile(r"[0-9A-Za-z._:%-]{1,253}")
_FILE_MODE: Final = re.compile(r"0[67][0-7]{2}")


def _size(value: object) -> int:
    if isinstance(value, str):
        return quantities.parse_worker(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(_NO_SIZE)  # noqa: TRY004 - what pydantic catches
    return quantities.check_worker(value)


def _size_or_percent(value: object) -> int | str:
    if isinstance(value, str) and value.endswith("%"):
        return f"{quantities.parse_percent(value)}%"
    return _size(value)


def _segment(value: object) -> int:
    size = _size(value)
    if size < SEGMENT_UNIT or size % SEGMENT_UNIT:
        raise ValueError(f"must be a multiple of {SEGMENT_UNIT} bytes (2m), and not 0: write 64m")
    return size


def _file_mode(value: object) -> str:
    if isinstance(value, str) and _FILE_MODE.fullmatch(value):
        return value
    raise ValueError(
        "must be four octal digits in quotes with which the owner reads and writes, as in '0660' or '0600'"
    )


def _place(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("must be a path, which has no character NUL")
    return path


def _address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None:
        raise ValueError("must be an address of this machine, as in 0.0.0.0, 127.0.0.1 or ::")
    return text


def _uri(text: str) -> str:
    parse_uri(text)
    return text


def _worker_name(text: str) -> str:
    if "/" in text or not text.isprintable():
        raise ValueError(
            "must have no '/' and only characters that can be printed: the host pool's folder is called so"
        )
    return text


def size_or(*words: str) -> pydantic.BeforeValidator:
    """Reads a size, or one of these words in any case."""

    def parse(value: object) -> object:
        return value.lower() if isinstance(value, str) and value.lower() in words else _size(value)

    return pydantic.BeforeValidator(parse)


Size = Annotated[int, pydantic.BeforeValidator(_size)]
"""Bytes, from 0 to `quantities.MAX_SIZE`; also read from text such as 48g."""

SizeOrPercent = Annotated[int | str, pydantic.BeforeValidator(_size_or_percent)]
"""A size, or a whole percentage of the card as '90%'."""

SegmentSize = Annotated[int, pydantic.BeforeValidator(_segment)]
"""A size of whole segment units, at least one."""

FileMode = Annotated[str, pydantic.BeforeValidator(_file_mode)]
"""Four octal digits; the owner, who is the worker, may read and write."""

Place = Annotated[Path, pydantic.AfterValidator(_place)]
"""A path that a file system could have."""

Port = Annotated[int, pydantic.Field(ge=0, le=65535)]
"""A TCP port; 0 takes a free one."""

Address = Annotated[str, pydantic.AfterValidator(_address)]
"""What a server can listen on: an IP address, or a name that may stand for one."""

SourceUri = Annotated[str, pydantic.AfterValidator(_uri)]
"""file://PATH, or pvc://CLAIM/PATH; only its spelling is checked."""

WorkerName = Annotated[str, pydantic.Field(min_length=1, max_length=253), pydantic.AfterValidator(_worker_name)]
"""A name that can be that of a folder."""
