# SPDX-License-Identifier: Apache-2.0
"""Paths of the protocol over HTTP. Pure.

A model's name may contain slashes, percent-encoded or plain. The last segment decides first: of `/v2/models/a/ready`
the model is `a`; a model that is really called `a/ready` is reached as `a%2Fready`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

_MODELS: Final = b"/v2/models/"


class Operation(Enum):
    """What a path asks for."""

    SERVER_METADATA = "server metadata"
    LIVE = "live"
    READY = "ready"
    MODEL_METADATA = "model metadata"
    MODEL_READY = "model ready"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, and the model and version it is about (empty where it is about none)."""

    operation: Operation
    model: str = ""
    version: str = ""

    @property
    def methods(self) -> tuple[bytes, ...]:
        """Methods that are allowed."""
        return (b"POST",) if self.operation is Operation.INFER else (b"GET", b"HEAD")


_FIXED: Final = {
    b"/v2": Route(Operation.SERVER_METADATA),
    b"/v2/health/live": Route(Operation.LIVE),
    b"/v2/health/ready": Route(Operation.READY),
}
_SUFFIXES: Final = {b"infer": Operation.INFER, b"ready": Operation.MODEL_READY}


@functools.lru_cache(maxsize=4096)
def parse(target: bytes) -> Route | None:
    """The route of a request target, which may have a query; None when there is none."""
    path = target.partition(b"?")[0]
    if path.startswith(b"http://"):
        path = b"/" + path[7:].partition(b"/")[2]
    if not path.startswith(_MODELS):
        return _FIXED.get(path.rstrip(b"/"))
    segments = path[len(_MODELS) :].split(b"/")
    operation = Operation.MODEL_METADATA
    if len(segments) > 1 and segments[-1] in _SUFFIXES:
        operation = _SUFFIXES[segments.pop()]
    version = b""
    if len(segments) > 2 and segments[-2] == b"versions":
        version = segments.pop()
        segments.pop()
    try:
        model = b"/".join(map(unquote_to_bytes, segments)).decode()
        return Route(operation, model, unquote_to_bytes(version).decode()) if model else None
    except UnicodeDecodeError:
        return None
