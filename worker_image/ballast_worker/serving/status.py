# SPDX-License-Identifier: Apache-2.0
"""How a refusal is told in each protocol: HTTP status and gRPC status code for every reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import grpc

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal

RETRY_AFTER: Final = "retry-after"
"""Trailing metadata of a gRPC refusal: whole seconds until another try makes sense."""

_CODES: Final[Mapping[Reason, tuple[int, grpc.StatusCode]]] = {
    Reason.NOT_REQUESTED: (404, grpc.StatusCode.NOT_FOUND),
    Reason.DEADLINE_EXCEEDED: (504, grpc.StatusCode.DEADLINE_EXCEEDED),
    Reason.QUEUE_FULL: (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.LOADING: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.INSUFFICIENT_DEVICE_MEMORY: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.INSUFFICIENT_HOST_MEMORY: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.NOT_CONTIGUOUS: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.SCRATCH_EXCEEDS_POOL: (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Reason.EXECUTION_FAILED: (500, grpc.StatusCode.INTERNAL),
}


def http_status(refusal: Refusal) -> int:
    """The HTTP status of a refusal; 503 for whatever keeps a known model from answering."""
    known = _CODES.get(refusal.reason)
    return known[0] if known is not None else 503


def grpc_status(refusal: Refusal) -> grpc.StatusCode:
    """The gRPC status code: UNAVAILABLE where another try may help, FAILED_PRECONDITION where only a change does."""
    known = _CODES.get(refusal.reason)
    if known is not None:
        return known[1]
    return (
        grpc.StatusCode.UNAVAILABLE if refusal.retry_after_seconds is not None else grpc.StatusCode.FAILED_PRECONDITION
    )


def retry_after(refusal: Refusal) -> str | None:
    """Whole seconds until another try makes sense, as Retry-After says it; None when it never does by itself."""
    return (
        None if refusal.retry_after_seconds is None else str(max(1, math.ceil(round(refusal.retry_after_seconds, 3))))
    )
